"""``Server-Timing``: a response says how long its request waited and ran.

An application with ``server_timing="never"`` does not use the observer of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.core.events import BatchObserver
from shoal.http.requests.call import HttpMetadata
from shoal.http.requests.exchange import Exchange, ServerTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.core.events import BatchRecord
    from shoal.core.request import Batch, Request

ASKED: Final = b"x-server-timing"


class RequestTimer(BatchObserver):
    def __init__(self, *, times_all: bool) -> None:
        self._times_all = times_all  # else those that ask for it

    def batch_began(self, batcher: str, batch: Batch, now: float) -> None:
        for request in batch.requests:
            self._began(request, min(batch.free_at, now), now)

    def requests_joined(
        self, batcher: str, batch: Batch, requests: Sequence[Request], now: float
    ) -> None:
        for request in requests:
            self._began(request, now, now)

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        _ended(request, now)

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        for request in requests:
            _ended(request, record.ended_at)

    def _began(self, request: Request, free_at: float, now: float) -> None:
        exchange = _exchange_of(request)
        if exchange is None or not (self._times_all or exchange.headers.get(ASKED) == b"1"):
            return
        exchange.times = times = exchange.times or ServerTimes()
        free_at = max(request.arrived_at, free_at)
        times.queue_s = max(times.queue_s, free_at - request.arrived_at)
        times.wait_s = max(times.wait_s, now - free_at)
        times.ran_from = now


def _ended(request: Request, now: float) -> None:
    exchange = _exchange_of(request)
    if exchange is not None and (times := exchange.times) is not None:
        times.run_s = max(times.run_s, now - times.ran_from)


def _exchange_of(request: Request) -> Exchange | None:
    metadata = request.metadata
    caller = metadata.caller if type(metadata) is HttpMetadata else None
    return caller if isinstance(caller, Exchange) else None
