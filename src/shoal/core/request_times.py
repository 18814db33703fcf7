"""How long requests took, from end to end, by endpoint, protocol and outcome; and their traces.

A request costs an `append`. What was appended is counted in bulk, and statuses become outcomes only
then.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.core.histogram import MOST_NEW, TIME_BOUNDS_S, Histogram
from shoal.errors import (
    BackendUnavailable,
    BatcherClosed,
    DeadlineExceeded,
    HandlerTimeout,
    ItemTooLarge,
    NoSuchName,
    Overloaded,
    ReplicaDied,
    ShutDown,
    SlowReader,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from shoal.core.histogram import HistogramSnapshot

PROTOCOLS: Final = ("json", "oip", "openai", "websocket", "python", "other")
"""All protocols that are counted separately. ``json`` is Shoal's own over HTTP, for any body;
``python`` are calls by handles; ``other`` are pages, and protocols that the program defines."""

OUTCOMES: Final = ("ok", "invalid", "unavailable", "timeout", "failed", "left")
"""How requests end: answered; refused for what the client sent; refused or lost since the server
was overloaded, closed or without a replica; out of time; failed; or left by their clients."""

LEFT: Final = 499
"""What is counted in place of a status if the client has left."""

# How long an exemplar is kept before another request may replace it, in seconds: noting one costs
# more than counting a request.
_EXEMPLAR_AGE_S: Final = 1.0
_TRACEPARENT: Final = re.compile(
    rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(-.{0,256})?"
)
_NO_TRACE: Final = "0" * 32
_NO_HEADERS: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class Exemplar(NamedTuple):
    trace_id: str
    took_s: float
    # In seconds since the epoch.
    at: float


class TimesOfOne(NamedTuple):
    """The times of requests to one endpoint with the same protocol and outcome."""

    endpoint: str
    protocol: str
    outcome: str
    times: HistogramSnapshot
    # By the bucket's number.
    exemplars: Mapping[int, Exemplar]


class _Series:
    __slots__ = ("exemplars", "histogram")

    def __init__(self) -> None:
        self.histogram = Histogram(TIME_BOUNDS_S)
        self.exemplars: dict[int, Exemplar] = {}


class RequestTimes:
    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], _Series] = {}
        # By endpoint, protocol and status.
        self._new: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)

    def count(
        self,
        endpoint: str,
        protocol: str,
        status: int,
        took_s: float,
        headers: Mapping[bytes, bytes] = _NO_HEADERS,
    ) -> None:
        """Counts an ended request; `status` may be `LEFT`. Reads ``traceparent`` of the headers."""
        new = self._new[endpoint, protocol, status]
        new.append(took_s)
        if len(new) >= MOST_NEW:
            self.count_new()
        if b"traceparent" in headers:
            self._note(endpoint, protocol, status, took_s, headers[b"traceparent"])

    def __iter__(self) -> Iterator[TimesOfOne]:
        self.count_new()
        for (endpoint, protocol, outcome), series in self._series.items():
            times = series.histogram.snapshot()
            yield TimesOfOne(endpoint, protocol, outcome, times, dict(series.exemplars))

    def keep(self, endpoints: Container[str]) -> None:
        for key in [key for key in self._series if key[0] not in endpoints]:
            del self._series[key]
        for new in [new for new in self._new if new[0] not in endpoints]:
            del self._new[new]

    def count_new(self) -> None:
        for (endpoint, protocol, status), new in self._new.items():
            if new:
                self._of(endpoint, protocol, status).histogram.observe_all(new)
                new.clear()

    def _of(self, endpoint: str, protocol: str, status: int) -> _Series:
        word = protocol if protocol in PROTOCOLS else "other"
        key = endpoint, word, outcome_of(status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        return series

    def _note(
        self, endpoint: str, protocol: str, status: int, took_s: float, traceparent: bytes
    ) -> None:
        exemplars = self._of(endpoint, protocol, status).exemplars
        bucket, now = bisect_left(TIME_BOUNDS_S, took_s), time.time()
        there = exemplars.get(bucket)
        if there is not None and 0 <= now - there.at < _EXEMPLAR_AGE_S:
            return
        trace_id = sampled_trace(traceparent)
        if trace_id is not None:
            exemplars[bucket] = Exemplar(trace_id, took_s, now)


def sampled_trace(traceparent: bytes) -> str | None:
    """Returns the trace id in a ``traceparent`` header; None if malformed or not recorded."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or traceparent.startswith(b"ff") or not int(found[2], 16) & 1:
        return None
    if found[3] is not None and traceparent.startswith(b"00"):
        return None  # the first version has no further fields
    trace_id = found[1].decode("ascii")
    return None if trace_id == _NO_TRACE else trace_id


def outcome_of(status: int) -> str:
    if status < 400:
        return "ok"
    return _OUTCOMES.get(status) or ("invalid" if status < 500 else "failed")


def status_of(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return LEFT
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)


_OUTCOMES: Final[Mapping[int, str]] = {
    408: "timeout",
    429: "unavailable",
    LEFT: "left",
    503: "unavailable",
    504: "timeout",
}
_STATUSES: Final[tuple[tuple[tuple[type[Exception], ...], int], ...]] = (
    ((Overloaded, BatcherClosed, ShutDown, BackendUnavailable, ReplicaDied), 503),
    ((DeadlineExceeded, HandlerTimeout, SlowReader), 504),
    ((ItemTooLarge, NoSuchName), 400),
)
