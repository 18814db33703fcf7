"""Planning: predicts latencies and batch sizes for given options and traffic.

`simulate` runs the rules that form batches over synthetic or recorded traffic, in virtual time, and
`plot` draws the result. ``shoal simulate`` and ``shoal tune`` do so on the command line.
"""

from shoal.core.simulation import simulate
from shoal.core.simulation_results import (
    Arrival,
    ClosedLoop,
    Linear,
    Outcome,
    RunTimes,
    SimulatedBatch,
    Simulation,
)
from shoal.planning.figures import plot
from shoal.planning.traces import Recording, bursty, constant, poisson, read_trace

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
    "plot",
    "poisson",
    "read_trace",
    "simulate",
]
