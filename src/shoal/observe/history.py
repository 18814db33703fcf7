"""The last batches of each batcher, and its activity in each of the last seconds, for a dashboard.

`BatchHistory` sees every batch, so it is added only while somebody watches, and its owner removes
it again. Its memory is bounded: it stores the last `MOST_ROWS` rows of each batcher.

A batch that is formed and then runs is one row. A batch that requests join while it runs has a row
for each of its requests instead: it has places, and each request has one of them from when it joins
until it leaves. Rows are numbered, so that a reader asks for rows that it has not seen.

`Sampler` computes rates, sizes and percentiles. Rates are differences of the engine's own counters,
so the engine does nothing for them. A `BatchHistory` notes the latencies.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shoal.core.events import BatchObserver, BatchRecord
from shoal.core.request import Batch, DispatchReason, Request, State
from shoal.observe.failures import id_of, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shoal.core.counters import BatcherStatistics
    from shoal.core.histogram import HistogramSnapshot


MOST_ROWS: Final = 400
"""How many rows are kept of each batcher."""

MOST_PLACES: Final = 64
"""How many requests in an open batch have places, and so rows, at once."""

_MOST_LATENCIES: Final = 2000
_MOST_RUNNING: Final = 64
_DIGITS: Final = 4

Row = tuple[Any, ...]
"""What JSON carries of a batch, or of a request in an open batch; its number is first."""

Stay = tuple[int, float, float, str]
"""Of a request in an open batch: its place, when it joined, how long it waited, and its id."""


class BatcherHistory:
    def __init__(self) -> None:
        # Ended batches: (number, id, reason, size, limit, load, began_at, ended_at, waited_s,
        # failed, cancelled, error). Of open batches: (number, batch, place, joined_at, left_at,
        # waited_s, outcome, request_id).
        self.rows: deque[Row] = deque(maxlen=MOST_ROWS)
        # since the last `take_latencies`
        self.latencies: deque[float] = deque(maxlen=_MOST_LATENCIES)
        self.running: dict[int, Row] = {}
        self.open_batches: dict[int, OpenBatchPlaces] = {}

    def take_latencies(self) -> list[float]:
        taken = list(self.latencies)
        self.latencies.clear()
        return taken

    def since(self, number: int) -> list[Row]:
        return [row for row in self.rows if row[0] > number]

    def now(self, *, is_open: bool) -> list[Row]:
        """Returns the batches that run now, or the requests in open batches."""
        # Rows are (id, reason, size, began_at, waited_s), or of open batches (batch, place,
        # joined_at, waited_s, request_id).
        if is_open:
            return [
                (batch, *stay)
                for batch, places in self.open_batches.items()
                for stay in places.taken.values()
            ]
        return list(self.running.values())[:_MOST_RUNNING]


class OpenBatchPlaces:
    def __init__(self) -> None:
        # By `id()`, which no other object has while the request runs. It has no requests that
        # joined while all places were taken.
        self.taken: dict[int, Stay] = {}
        self._free = [*range(MOST_PLACES)]  # a heap

    def join(self, request: Request, now: float) -> None:
        if self._free:
            waited_s = round(now - request.arrived_at, _DIGITS)
            stay = heapq.heappop(self._free), round(now, _DIGITS), waited_s, id_of(request)
            self.taken[id(request)] = stay

    def leave(self, request: Request) -> Stay | None:
        stay = self.taken.pop(id(request), None)
        if stay is not None:
            heapq.heappush(self._free, stay[0])
        return stay


class BatchHistory(BatchObserver):
    def __init__(self) -> None:
        self.by_batcher: defaultdict[str, BatcherHistory] = defaultdict(BatcherHistory)
        self.number = 0  # of the last row

    def keep_only(self, batchers: Collection[str]) -> None:
        for name in self.by_batcher.keys() - set(batchers):
            del self.by_batcher[name]

    def forget_running(self) -> None:
        for one in self.by_batcher.values():
            one.running.clear()
            one.open_batches.clear()
            one.latencies.clear()

    def batch_began(self, batcher: str, batch: Batch, now: float) -> None:
        known = self.by_batcher[batcher]
        if batch.reason is DispatchReason.OPEN:
            places = known.open_batches[batch.id] = OpenBatchPlaces()
            for request in batch.requests:
                places.join(request, now)
            return
        waited_s = round(now - batch.arrived_at, _DIGITS)
        began_at = round(now, _DIGITS)
        known.running[batch.id] = batch.id, batch.reason.value, batch.size, began_at, waited_s

    def requests_joined(
        self, batcher: str, batch: Batch, requests: Sequence[Request], now: float
    ) -> None:
        places = self._places(self.by_batcher[batcher], batch, requests)
        for request in requests:
            places.join(request, now)

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        known = self.by_batcher[batcher]
        if request.state is State.FINISHED:
            known.latencies.append(now - request.arrived_at)
        stay = self._places(known, batch).leave(request)
        if stay is not None:
            self._add_stay(known, batch.id, stay, now, request.state.value)

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        known = self.by_batcher[record.batcher]
        if record.is_open:
            places = known.open_batches.pop(record.id, None)
            for stay in () if places is None else places.taken.values():
                self._add_stay(known, record.id, stay, record.ended_at, State.CANCELLED.value)
            return
        known.running.pop(record.id, None)
        ended_at = record.ended_at
        known.latencies.extend(
            [ended_at - one.arrived_at for one in requests if one.state is State.FINISHED]
        )
        self.number += 1
        known.rows.append(
            (
                self.number,
                record.id,
                record.reason.value,
                record.size,
                _number(record.limit),
                _number(record.load),
                round(record.began_at, _DIGITS),
                round(ended_at, _DIGITS),
                round(record.wait_s, _DIGITS),
                record.failed,
                record.cancelled,
                None if record.error is None else name_of(record.error),
            )
        )

    def _places(
        self, known: BatcherHistory, batch: Batch, joining: Sequence[Request] = ()
    ) -> OpenBatchPlaces:
        """Returns the places of an open batch, which may have begun unwatched."""
        places = known.open_batches.get(batch.id)
        if places is None:
            places = known.open_batches[batch.id] = OpenBatchPlaces()
            for request in batch.requests:
                if request.state is State.RUNNING and request not in joining:
                    places.join(request, request.arrived_at)  # it is not known when it joined
        return places

    def _add_stay(
        self, known: BatcherHistory, batch: int, stay: Stay, left_at: float, outcome: str
    ) -> None:
        place, joined_at, waited_s, request_id = stay
        self.number += 1
        left_at = round(left_at, _DIGITS)
        known.rows.append(
            (self.number, batch, place, joined_at, left_at, waited_s, outcome, request_id)
        )


def _number(cost: float) -> float:
    """Returns a cost, which may be any number of the user's, as JSON can represent it."""
    try:
        return float(cost)
    except OverflowError:
        return math.inf


MOST_SAMPLES: Final = 180
"""How many samples are kept."""

PERIOD_S: Final = 1.0
"""How long one sample lasts, in seconds."""

_LONGEST_S: Final = 3 * PERIOD_S
_PERCENTS: Final = (50, 95, 99)
# Above the period: a sampler that is called each second is called a little early, too.
_EARLY_S: Final = 0.05

Sample = dict[str, Any]


class BatcherReading(NamedTuple):
    name: str
    statistics: BatcherStatistics
    is_open: bool  # whether requests join its batches while they run
    streams: bool  # whether its calls return streams


class Sampler:
    def __init__(
        self, history: BatchHistory, batchers: Callable[[], Iterable[BatcherReading]]
    ) -> None:
        # The oldest first. `at` is when each ended, `all` is about all batchers and `batchers`
        # about each of them.
        self.samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self.number = 0
        self.latest: Sequence[BatcherReading] = ()
        self._history = history
        self._batchers = batchers
        self._before: Mapping[str, BatcherStatistics] = {}
        self._before_at = -math.inf

    def step(self, now: float) -> bool:
        """Adds a sample if a second has passed; returns whether it did, or began to count."""
        passed_s = now - self._before_at
        if passed_s < PERIOD_S - _EARLY_S:
            return False
        self.latest = list(self._batchers())
        of = self._history.by_batcher
        latencies = {one.name: sorted(of[one.name].take_latencies()) for one in self.latest}
        # Nobody has called it for long: a mean of that time would look like one second, and the
        # last sample of an earlier time like what happens now.
        if passed_s <= _LONGEST_S:
            self._add(now, passed_s, latencies)
        else:
            self.samples.clear()
        self._before = {one.name: one.statistics for one in self.latest}
        self._before_at = now
        return True

    def since(self, number: int) -> list[Sample]:
        return [sample for sample in self.samples if sample["number"] > number]

    def _add(self, now: float, passed_s: float, latencies: Mapping[str, list[float]]) -> None:
        by_batcher: dict[str, Sample] = {
            one.name: {
                **_rates(one.statistics, self._before.get(one.name), passed_s),
                **_percentiles(latencies[one.name]),
                "queued": one.statistics.queued + one.statistics.parked,
                "levels": {str(level): n for level, n in one.statistics.queued_by_level.items()},
                "running": one.statistics.running,
                "limit": float(min(one.statistics.max_batch_size, 2**53)),
                "streams": one.statistics.running if one.streams else 0,
            }
            for one in self.latest
        }
        everything: Sample = {
            key: sum([one[key] for one in by_batcher.values()])
            for key in (*_OUTCOMES, "batches", "queued", "running", "streams")
        }
        in_batches = sum([one["size"] * one["batches"] for one in by_batcher.values()])
        everything["size"] = in_batches / everything["batches"] if everything["batches"] else 0
        merged = sorted([each for one in latencies.values() for each in one])
        self.number += 1
        self.samples.append(
            {
                "number": self.number,
                "at": round(now, 3),
                "all": {**everything, **_percentiles(merged)},
                "batchers": by_batcher,
            }
        )


_OUTCOMES: Final = ("finished", "failed", "declined", "left", "refused")


def _rates(now: BatcherStatistics, before: BatcherStatistics | None, passed_s: float) -> Sample:
    if before is None or before.finished > now.finished:  # another batcher of that name
        before = now
    batches = now.batch_size.total - before.batch_size.total

    def rate(*names: str) -> float:
        counted: float = sum([getattr(now, name) - getattr(before, name) for name in names])
        return round(counted / passed_s, 3)

    return {
        "finished": rate("finished"),
        "failed": rate("failed"),
        "declined": rate("declined"),
        "left": rate("cancelled", "expired"),
        "refused": rate("rejected", "shed"),
        "batches": round(batches / passed_s, 3),
        "size": _mean(now.batch_size, before.batch_size),
        "wait_s": _mean(now.wait_s, before.wait_s),
        "run_s": _mean(now.run_s, before.run_s),
        "reasons": {
            reason.value: round((count - before.batches[reason]) / passed_s, 3)
            for reason, count in now.batches.items()
            if count > before.batches[reason]
        },
    }


def _mean(now: HistogramSnapshot, before: HistogramSnapshot) -> float:
    count = now.total - before.total
    return round((now.sum - before.sum) / count, 6) if count else 0


def _percentiles(times: Sequence[float]) -> Sample:
    places = {percent: -(-len(times) * percent // 100) - 1 for percent in _PERCENTS}
    return {f"p{one}": round(times[nth], 6) if times else None for one, nth in places.items()}
