"""Planning: predicts latencies and batch sizes for given options and traffic.

`simulate` runs the rules that form batches over synthetic or recorded traffic, in virtual time.
``shoal simulate`` and ``shoal tune`` do so on the command line. Names are imported on first use, as
in `shoal`.
"""

from typing import TYPE_CHECKING

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.core.simulation.results import (
        Arrival,
        ClosedLoop,
        Linear,
        Outcome,
        RunTimes,
        SimulatedBatch,
        Simulation,
    )
    from shoal.core.simulation.simulate import simulate
    from shoal.planning.traces import Recording, bursty, constant, diurnal, poisson, read_trace

__all__ = [
    "Arrival",
    "ClosedLoop",
    "Linear",
    "Outcome",
    "Recording",
    "RunTimes",
    "SimulatedBatch",
    "Simulation",
    "bursty",
    "constant",
    "diurnal",
    "poisson",
    "read_trace",
    "simulate",
]

_WHERE = {
    "Arrival": "shoal.core.simulation.results",
    "ClosedLoop": "shoal.core.simulation.results",
    "Linear": "shoal.core.simulation.results",
    "Outcome": "shoal.core.simulation.results",
    "Recording": "shoal.planning.traces",
    "RunTimes": "shoal.core.simulation.results",
    "SimulatedBatch": "shoal.core.simulation.results",
    "Simulation": "shoal.core.simulation.results",
    "bursty": "shoal.planning.traces",
    "constant": "shoal.planning.traces",
    "diurnal": "shoal.planning.traces",
    "poisson": "shoal.planning.traces",
    "read_trace": "shoal.planning.traces",
    "simulate": "shoal.core.simulation.simulate",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
