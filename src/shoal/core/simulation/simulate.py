"""Simulates how a batcher's options handle some traffic, with the real rules in simulated time.

The queue and the rules that form batches only decide and have no side effects, so they can be used
without an event loop: an arrival is passed to the real `Former`, a free slot asks it, and the
handler is represented by its run time only. A minute of traffic is simulated in a moment, and the
result is the same as the engine's for every request; the tests compare the two.

The alternatives are a formula, or a second implementation of the rules. Formulas exist only for the
simplest queues, and a second implementation would be wrong as soon as the first one changes.

The overhead of the program itself, some microseconds per request, is left out: a simulation does
not tell how many requests one process can handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.simulation.batcher import SimulatedBatcher
from shoal.core.simulation.results import ClosedLoop, RunTimes, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.core.options.options import BatchOptions
    from shoal.core.simulation.results import Arrival


def simulate(
    trace: Iterable[float | Arrival] | ClosedLoop,
    options: BatchOptions,
    latency_model: Callable[[float], float] | RunTimes,
) -> Simulation:
    """Simulates a batcher that serves a trace of arrivals.

    After the last arrival the batcher runs until all requests have ended. If its options would wait
    for more requests forever, it is then drained.

    Args:
        trace: The arrivals in ascending order: times in seconds, or `Arrival` records for calls
            that are not all alike. Or callers in a `ClosedLoop`.
        options: The options of the batcher.
        latency_model: The run time of the handler, in seconds: a function of the batch size (the
            sum of the costs with a ``batch_size_fn``), or a `Linear`.

    Returns:
        The outcome of every request, and the batches.

    Raises:
        ValueError: The times of the trace do not ascend, the model returns an invalid time, or the
            options can't be simulated: with `split` one call makes several requests.
    """
    if options.split is not None:
        raise ValueError("split can't be simulated: write its parts into the trace, as requests")
    run_time = latency_model.sampler() if isinstance(latency_model, RunTimes) else latency_model
    batcher = SimulatedBatcher(options, run_time)
    if isinstance(trace, ClosedLoop):
        batcher.serve_callers(trace)
    else:
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
