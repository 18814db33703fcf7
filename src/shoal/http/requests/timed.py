"""``Server-Timing``: a response says how long its request waited and ran.

An application with ``server_timing="never"`` uses neither the exchanges nor the observer of this
module, so it pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.core.events import BatchObserver
from shoal.http.requests.call import HttpMetadata
from shoal.http.requests.exchange import WITHOUT_BODY, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import Message

    from shoal.core.events import BatchRecord
    from shoal.core.request import Batch, Request

ASKED: Final = b"x-server-timing"


class TimedExchange(Exchange):
    """A request of several items has several calls; the longest of their times count."""

    # Until a worker slot was free; None before it runs.
    queue_s: float | None = None
    # Waiting for others to fill the batch; the start, on the loop's clock; in the handler.
    wait_s = ran_from = run_s = 0.0

    async def answer(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        if status not in WITHOUT_BODY:  # else it is added where the answer begins
            headers = [*headers, *self._timing()]
        await super().answer(status, media_type, body, headers)

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
        return super()._begin(status, [*headers, *self._timing()])

    def _timing(self) -> list[tuple[bytes, bytes]]:
        """Returns no header if it was not asked for, or no batch had the request."""
        if self.queue_s is None:
            return []
        if self.settings.server_timing == "asked" and self.headers.get(ASKED) != b"1":
            return []
        times = [("queue", self.queue_s), ("wait", self.wait_s)]
        if self.run_s:
            times.append(("run", self.run_s))
        listed = ", ".join([f"{name};dur={took_s * 1000:.3f}" for name, took_s in times])
        return [(b"server-timing", listed.encode("ascii"))]


class RequestTimer(BatchObserver):
    def batch_began(self, batcher: str, batch: Batch, now: float) -> None:
        for request in batch.requests:
            _began(request, min(batch.free_at, now), now)

    def requests_joined(
        self, batcher: str, batch: Batch, requests: Sequence[Request], now: float
    ) -> None:
        for request in requests:
            _began(request, now, now)

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        _ended(request, now)

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        for request in requests:
            _ended(request, record.ended_at)


def _exchange_of(request: Request) -> TimedExchange | None:
    metadata = request.metadata
    caller = metadata.caller if type(metadata) is HttpMetadata else None
    return caller if isinstance(caller, TimedExchange) else None


def _began(request: Request, free_at: float, now: float) -> None:
    exchange = _exchange_of(request)
    if exchange is not None:
        free_at = max(request.arrived_at, free_at)
        exchange.queue_s = max(exchange.queue_s or 0.0, free_at - request.arrived_at)
        exchange.wait_s = max(exchange.wait_s, now - free_at)
        exchange.ran_from = now


def _ended(request: Request, now: float) -> None:
    exchange = _exchange_of(request)
    if exchange is not None and exchange.queue_s is not None:
        exchange.run_s = max(exchange.run_s, now - exchange.ran_from)
