"""Simulations of callers that call again and again: they match the engine, regathering included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.played_traces import assert_the_same, played_by_callers
from shoal.core.batch import DispatchReason
from shoal.core.options.options import BatchOptions
from shoal.core.simulation.results import ClosedLoop, Linear
from shoal.core.simulation.simulate import simulate
from shoal.testing import run_virtually

if TYPE_CHECKING:
    from shoal.core.simulation.results import Simulation

# They vary, so that no two events are at one instant, when the order in an event loop is random.
RUN_TIME = Linear(0.0113, 0.00021, jitter=0.05, seed=1)


def compared(backend: str, loop: ClosedLoop, options: dict[str, Any]) -> Simulation:
    """Simulates callers, runs them on the engine, and compares the two."""
    simulation = simulate(loop, BatchOptions(**options), RUN_TIME)
    engine = run_virtually(played_by_callers, loop, options, RUN_TIME.sampler(), backend=backend)
    assert_the_same(simulation, engine)
    return simulation


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    ("callers", "options"),
    [
        (16, {"max_batch_size": 32}),
        (32, {"max_batch_size": 32, "max_concurrent_batches": 2}),
        (16, {"max_batch_size": 32, "batch_wait_timeout_s": 0.0013}),
        (16, {"max_batch_size": 32, "priority_levels": 2, "request_timeout_s": 5}),
    ],
    ids=["one batch", "two slots", "a window", "ranked, with deadlines"],
)
def test_callers_are_gathered_again_in_a_simulation_as_by_the_engine(backend, callers, options):
    loop = ClosedLoop(callers, 0.001, 1, jitter=0.3, seed=2)
    simulation = compared(backend, loop, options)
    assert simulation.reasons[DispatchReason.REGATHER] >= 10
