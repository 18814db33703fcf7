"""What options would do at some traffic: the real rules, in time that is only a number.

The line and the rule that cuts batches decide and never act, so they can be asked here as the slots
ask them, without an event loop: an arrival enters the real `Former`, a free slot asks it, and the
handler is nothing but how long it takes. A minute of traffic takes a moment, and the answer is the
engine's own, request by request; the tests hold the two against each other.

The rival is a formula, or a model of the rule beside the rule. Formulas exist for the simplest
lines alone, and a second copy of the rules would be wrong the day after the first one changes.

What is left out is what the program itself costs, some microseconds a request: a simulation says
nothing of how many requests one process can take in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.simulation.batcher import SimulatedBatcher
from shoal.core.simulation.results import RunTimes, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.core.options.options import BatchOptions
    from shoal.core.simulation.results import Arrival


def simulate(
    trace: Iterable[float | Arrival],
    options: BatchOptions,
    latency_model: Callable[[float], float] | RunTimes,
) -> Simulation:
    """Runs the rules that form batches over a trace of arrivals, in virtual time.

    When the last request has come the batcher goes on until all have ended; where options would
    wait for company for ever, it then drains.

    Args:
        trace: When requests come, in ascending order: times in seconds, or `Arrival` for calls that
            are not all alike.
        options: The options of the batcher.
        latency_model: How long the handler takes, in seconds: a function of the size that it is
            given (the sum of the costs where there is a ``batch_size_fn``), or a `Linear`.

    Returns:
        What became of every request, and the batches.

    Raises:
        ValueError: The trace goes back in time, the model gives no time, or the options can't be
            simulated: with `split` one call makes several requests.
    """
    if options.split is not None:
        raise ValueError("split can't be simulated: write its parts into the trace, as requests")
    run_time = latency_model.sampler() if isinstance(latency_model, RunTimes) else latency_model
    batcher = SimulatedBatcher(options, run_time)
    batcher.serve(trace)
    arrived_at = batcher.arrived_at
    return Simulation(
        options,
        arrived_at,
        batcher.latency_s,
        batcher.outcomes,
        batcher.batches,
        duration_s=max(batcher.ended_at, arrived_at[-1]) - arrived_at[0] if arrived_at else 0.0,
    )
