"""The last failures of batchers: which error, in which batch, and the ids of the requests.

It is told of failures only, so it costs nothing while there are none. Texts of errors, items and
results are never kept: they may have anything in them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shoal.core.events import BatchObserver
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.batch import Batch
    from shoal.core.events import BatchRecord
    from shoal.core.request import Request

MOST_KEPT: Final = 50
"""How many failures are kept."""

MOST_IDS: Final = 8
"""How many ids of requests are kept of one failure."""

_LONGEST: Final = 64


@dataclass(slots=True)
class Failure:
    """Requests of one batch that failed.

    Attributes:
        at: When the last of them failed, in seconds on the event loop's clock.
        batcher: The batcher's name.
        batch: The batch's number.
        error: The name of the error's class.
        count: How many failed.
        ids: The ids of the first ones that have an id.
    """

    at: float
    batcher: str
    batch: int
    error: str
    count: int = 0
    ids: list[str] = field(default_factory=list[str])


class FailureLog(BatchObserver):
    """Keeps the last failures.

    Args:
        is_failure: Returns whether an error of code is one; an answer that it chose is none.

    Attributes:
        kept: These failures, the oldest first.
    """

    def __init__(self, is_failure: Callable[[BaseException], bool] = lambda _: True) -> None:
        self._is_failure = is_failure
        self.kept: deque[Failure] = deque(maxlen=MOST_KEPT)

    @override
    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        if record.error is None or record.is_open:  # those of open batches were told one by one
            return
        errors = [
            (request, request.error or record.error)
            for request in requests
            if request.state is State.FAILED
        ]
        failed = [(request, error) for request, error in errors if self._is_failure(error)]
        if not failed:
            return
        failure = Failure(record.ended_at, record.batcher, record.id, name_of(failed[0][1]))
        failure.count = len(failed)
        failure.ids = [found for request, _ in failed if (found := id_of(request))][:MOST_IDS]
        self.kept.append(failure)

    @override
    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        if request.state is not State.FAILED:
            return
        if request.error is not None and not self._is_failure(request.error):
            return
        error = name_of(request.error)
        last = self.kept[-1] if self.kept else None
        if last is None or (last.batcher, last.batch, last.error) != (batcher, batch.id, error):
            last = Failure(now, batcher, batch.id, error)
            self.kept.append(last)
        last.at = now
        last.count += 1
        if len(last.ids) < MOST_IDS and (found := id_of(request)):
            last.ids.append(found)


def name_of(error: Any) -> str:
    """Returns the name of an error's class, or the first part of a long one."""
    return _shown(type(error).__name__)


def id_of(request: Request) -> str:
    """Returns the id of a request; empty if it has none."""
    try:
        found = request.metadata.get("request_id")
    except Exception:  # the caller's own mapping
        return ""
    return _shown(found) if isinstance(found, str) else ""


def _shown(text: str) -> str:
    # Half of a surrogate pair is no text that JSON can carry.
    return text[:_LONGEST].encode("utf-8", "backslashreplace").decode()
