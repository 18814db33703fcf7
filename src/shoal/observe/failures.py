"""The last failures of batchers: which error, in which batch, and the ids of the requests.

It handles failures only, so it costs nothing without them. Texts of errors, items and results are
never stored: they may contain anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shoal.core.events import BatchObserver, BatchRecord
from shoal.core.request import Batch, Request, State

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_KEPT: Final = 50
"""How many failures are kept that differ in batcher or error."""

MOST_IDS: Final = 8
"""How many ids of requests are kept of one failure."""

_LONGEST: Final = 64


@dataclass(slots=True)
class Failure:
    at: float  # when the last of them failed
    batcher: str
    batch: int  # the last one's
    error: str
    count: int = 0
    ids: list[str] = field(default_factory=list[str])  # the last ids


class FailureLog(BatchObserver):
    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Failure] = {}

    @property
    def kept(self) -> list[Failure]:
        """The oldest first."""
        return list(self._kept.values())

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        if record.error is None or record.is_open:  # open batches reported theirs one by one
            return
        for request in requests:
            if request.state is State.FAILED:
                error = record.error if request.error is None else request.error
                self._add(record.batcher, record.id, request, error, record.ended_at)

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        if request.state is State.FAILED:
            self._add(batcher, batch.id, request, request.error, now)

    def _add(
        self, batcher: str, batch: int, request: Request, error: BaseException | None, at: float
    ) -> None:
        key = batcher, name_of(error)
        failure = self._kept.pop(key, None) or Failure(at, batcher, batch, key[1])
        self._kept[key] = failure  # as the last one
        failure.at, failure.batch = at, batch
        failure.count += 1
        if found := id_of(request):
            failure.ids = [*failure.ids, found][-MOST_IDS:]
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]


def name_of(error: Any) -> str:
    return _shown(type(error).__name__)


def id_of(request: Request) -> str:
    try:
        found = request.metadata.get("request_id")
    except Exception:  # the caller's own mapping
        return ""
    return _shown(found) if isinstance(found, str) else ""


def _shown(text: str) -> str:
    # Half of a surrogate pair is no text that JSON can carry.
    return text[:_LONGEST].encode("utf-8", "backslashreplace").decode()
