"""The parts of a ``shoal trace`` beside its requests: a batcher's options, batches, run times.

The run times are a model for simulations: the measured times of a size, with a line through them
for the sizes between and beyond.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.core.counters import REQUEST_OUTCOMES
from shoal.core.latency_model import line_through
from shoal.core.options.options import OPTIONS
from shoal.core.request import DispatchReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

FORMAT: Final = 1
"""The greatest number of a form of traces that can be read."""

_MOST_SIZES: Final = 64
# With fewer runs of a size, times vary as those of all sizes do.
_ENOUGH_RUNS: Final = 5
_LEAST_S: Final = 1e-9
_NOT_SIMULATED: Final = frozenset({"pad", "join"})
_FROM_COLUMNS: Final = frozenset({"batch_size_fn", "bucket_by"})


class RecordedBatch(NamedTuple):
    """One batch of a recording.

    Attributes:
        at: When it was dispatched, in seconds from the start of the recording.
        reason: Why.
        size: How many requests it had.
        load: Their cost, with padding.
        run_s: How long the handler took, in seconds.
    """

    at: float
    reason: DispatchReason
    size: int
    load: float
    run_s: float


@dataclass(slots=True)
class RecordedBatcher:
    """The recorded options and batches of one batcher, and the outcomes of its requests.

    Attributes:
        name: Its name.
        options: Its options, as keywords of `BatchOptions`, without functions.
        functions: The names of its options that are functions.
        is_open: Whether requests join its batches while they run.
        changes: How often its options changed during the recording; `options` are the last ones.
        fixed_s: The part of a run that did not depend on its size, as the server had learned it;
            None if it had learned none.
        per_item_s: The part for each item; None if the server had learned none.
        batches: Its batches, in the order in which they ended.
        latency_s: From the arrival of each answered request to its result, in seconds.
        waits_s: How long each request of a batch had waited, in seconds.
        arrived_at: When each request arrived, in seconds from the start of the recording.
        stayed_s: How long each of these was at the server, in seconds.
        outcomes: The number of requests by outcome, such as ``"finished"``.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    functions: tuple[str, ...] = ()
    is_open: bool = False
    changes: int = 0
    fixed_s: float | None = None
    per_item_s: float | None = None
    batches: list[RecordedBatch] = field(default_factory=list[RecordedBatch])
    latency_s: list[float] = field(default_factory=list[float])
    waits_s: list[float] = field(default_factory=list[float])
    arrived_at: list[float] = field(default_factory=list[float])
    stayed_s: list[float] = field(default_factory=list[float])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    # The number of the batch that the next requests belong to.
    _batch: Any = None

    def describe(self, row: Mapping[str, Any]) -> None:
        """Reads the options from a line of the recording."""
        given = _mapping(row.get("options"))
        options = {
            name: OPTIONS[name].from_plain(name, value)
            for name, value in given.items()
            if name in OPTIONS and not OPTIONS[name].is_function
        }
        self.changes += bool(self.options) and options != self.options
        self.options = options
        functions = row.get("functions", ())
        self.functions = tuple(name for name in functions if isinstance(name, str))
        self.is_open = row.get("open") is True
        run_time = _mapping(row.get("run_time", {}))
        if run_time:
            self.fixed_s = at_least_0(run_time.get("fixed_s"))
            self.per_item_s = at_least_0(run_time.get("per_item_s"))

    def add_batch(self, row: Mapping[str, Any]) -> None:
        batch = RecordedBatch(
            at_least_0(row["at"]),
            DispatchReason(row["reason"]),
            int(row["size"]),
            at_least_0(row["load"]),
            at_least_0(row["run_s"]),
        )
        if batch.size < 1:
            raise ValueError
        self.batches.append(batch)
        self._batch = row.get("batch")

    def add_request(self, row: Mapping[str, Any]) -> None:
        outcome = row.get("outcome", "finished")
        if outcome not in REQUEST_OUTCOMES:
            raise ValueError
        self.outcomes[outcome] += 1
        took_s = row.get("took_s")
        latency_s = at_least_0(row.get("left_s", 0.0) if took_s is None else took_s)
        self.arrived_at.append(at_least_0(row["at"]))
        self.stayed_s.append(latency_s)
        if took_s is None or outcome != "finished":
            return
        self.latency_s.append(latency_s)
        if self._batch is not None and row.get("batch") == self._batch and not self.is_open:
            self.waits_s.append(max(0.0, latency_s - self.batches[-1].run_s))

    def run_times(self, seed: int = 0) -> MeasuredRunTimes | None:
        """Returns a model of the run times; None if no batch has ended."""
        if not self.batches:
            return None
        runs = [(batch.load, batch.run_s) for batch in self.batches]
        return measured_run_times(runs, self.fixed_s, self.per_item_s, seed)

    def left_out(self) -> list[str]:
        """Returns the names of the options in force that can't be simulated."""
        ignored = _NOT_SIMULATED | _FROM_COLUMNS
        left_out = [name for name in self.functions if name not in ignored]
        if self.options.get("cache") is not None:
            left_out.append("cache")
        return left_out


@dataclass(frozen=True, slots=True)
class MeasuredRunTimes:
    """Run times that vary as the measured ones do; a latency model for `simulate`."""

    runs_s: Mapping[float, Sequence[float]]  # by batch size or cost, ascending
    fixed_s: float  # the part of a run that does not depend on the size, as fitted
    per_item_s: float
    seed: int = 0

    def __call__(self, size: float) -> float:
        """Returns the median run time of a size, on a line between or beyond measured ones."""
        sizes = list(self.runs_s)
        above = bisect_left(sizes, size)
        upper = sizes[min(above, len(sizes) - 1)]
        upper_s = median(self.runs_s[upper])
        if 0 < above < len(sizes):
            lower = sizes[above - 1]
            lower_s = median(self.runs_s[lower])
            return lower_s + (upper_s - lower_s) * (size - lower) / (upper - lower)
        return upper_s * self._fitted_s(size) / self._fitted_s(upper)

    def sampler(self) -> Callable[[float], float]:
        """Returns a function from a batch's size to its run time, in seconds."""
        chance = random.Random(self.seed)  # noqa: S311 - no secret is drawn
        usual_s = cache(self.__call__)
        sizes = list(self.runs_s)
        ratios = [
            [run_s / max(usual_s(size), _LEAST_S) for run_s in runs_s]
            for size, runs_s in self.runs_s.items()
        ]
        of_all = [ratio for some in ratios for ratio in some]

        def sample(size: float) -> float:
            above = min(bisect_left(sizes, size), len(sizes) - 1)
            if above and size - sizes[above - 1] < sizes[above] - size:
                above -= 1
            some = ratios[above]
            return usual_s(size) * chance.choice(some if len(some) >= _ENOUGH_RUNS else of_all)

        return sample

    def _fitted_s(self, size: float) -> float:
        return max(self.fixed_s + self.per_item_s * size, _LEAST_S)


def measured_run_times(
    runs: Iterable[tuple[float, float]],
    fixed_s: float | None = None,
    per_item_s: float | None = None,
    seed: int = 0,
) -> MeasuredRunTimes:
    """Fits a model to sizes and run times; the other arguments guide it for one size."""
    runs_s = _by_size(runs)
    usual = [(size, median(times), float(len(times))) for size, times in runs_s.items()]
    if len(usual) > 1:
        per_item_s, fixed_s = line_through(usual)
        if fixed_s < 0:
            per_item_s, fixed_s = median(run_s / size for size, run_s, _ in usual), 0.0
    else:
        fixed_s, per_item_s = _through(*usual[0][:2], fixed_s or 0.0, per_item_s or 0.0)
    return MeasuredRunTimes(runs_s, fixed_s, per_item_s, seed)


def _by_size(runs: Iterable[tuple[float, float]]) -> dict[float, list[float]]:
    ordered = sorted(runs)
    if len({size for size, _ in ordered}) <= _MOST_SIZES:
        groups: dict[float, list[float]] = {}
        for size, run_s in ordered:
            groups.setdefault(size, []).append(run_s)
        return groups
    step = math.ceil(len(ordered) / _MOST_SIZES)
    parts = [ordered[at : at + step] for at in range(0, len(ordered), step)]
    return {median(size for size, _ in part): [run_s for _, run_s in part] for part in parts}


def _through(size: float, run_s: float, fixed_s: float, per_item_s: float) -> tuple[float, float]:
    """Scales a guess so that it fits the only size that was measured."""
    guessed_s = fixed_s + per_item_s * size
    if not guessed_s:
        return run_s, 0.0
    return fixed_s * run_s / guessed_s, per_item_s * run_s / guessed_s


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return cast("dict[str, Any]", value)


def at_least_0(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf or isinstance(value, bool):
        raise ValueError
    return number
