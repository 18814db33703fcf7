"""Planning: what options would do at some traffic, before there is any.

`simulate` runs the rules that form batches over made-up or recorded traffic, in virtual time, and
`plot` draws what came of it. ``shoal simulate`` and ``shoal tune`` do so on the command line.
"""

from shoal.core.simulation.results import (
    Arrival,
    Linear,
    Outcome,
    RunTimes,
    SimulatedBatch,
    Simulation,
)
from shoal.core.simulation.simulate import simulate
from shoal.planning.plots import plot
from shoal.planning.recorded import Recording, read_trace
from shoal.planning.traces import bursty, constant, diurnal, poisson

__all__ = [
    "Arrival",
    "Linear",
    "Outcome",
    "Recording",
    "RunTimes",
    "SimulatedBatch",
    "Simulation",
    "bursty",
    "constant",
    "diurnal",
    "plot",
    "poisson",
    "read_trace",
    "simulate",
]
