"""The log of failed batches: a line for each, with what failed and whose requests were in it.

Items and results are not logged. The traceback of a handler's error is, and the text of that error,
which is the handler's own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shoal.core.events import BatchObserver
from shoal.core.request import State
from shoal.http.requests.problem import marked_as_logged, problem_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.core.events import BatchRecord
    from shoal.core.request import Request
    from shoal.serving.http_options import HttpOptions

LOGGER: Final = "shoal.batches"
"""The name of its logger."""

_MOST_IDS: Final = 64
_LONGEST_ID: Final = 64

_log: Final = logging.getLogger(LOGGER)


class FailedBatchLog(BatchObserver):
    """Logs the batches in which a request failed, unless by a status that the code has chosen.

    Args:
        settings: The options of the application.
    """

    def __init__(self, settings: HttpOptions) -> None:
        self._settings = settings

    @override
    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        error = record.error
        if not isinstance(error, Exception):
            return
        problem = problem_of(error, self._settings)
        if problem.status < 500 or not problem.kind:  # the code itself has chosen the answer
            return
        is_internal = problem.kind == "internal"
        original, is_new = marked_as_logged(error)
        ids = _ids([one for one in requests if one.state is State.FAILED])
        more = record.failed - len(ids)
        listed = ", ".join(ids) + (f" and {more} more" if more > 0 else "")
        _log.log(
            logging.ERROR if is_internal else logging.WARNING,
            "%s: batch %d failed: %s, %d of %d requests (%s)",
            record.batcher,
            record.id,
            type(original).__name__,
            record.failed,
            record.size,
            listed,
            exc_info=original if is_internal and is_new else None,
            extra={
                "backend": record.batcher,
                "batch": record.id,
                "error": type(original).__name__,
                "size": record.size,
                "failed": record.failed,
                "run_s": round(record.run_s, 6),
                "request_ids": ids,
                **_trace_of(record),
            },
        )


def _ids(requests: Sequence[Request]) -> list[str]:
    """Returns the ids of requests; ``-`` for one that did not come over HTTP."""
    found: list[Any] = [one.metadata.get("request_id") for one in requests[:_MOST_IDS]]
    return [one[:_LONGEST_ID] if isinstance(one, str) else "-" for one in found]


def _trace_of(record: BatchRecord) -> dict[str, str]:
    """Returns the ids of a batch's trace and span."""
    parts = (record.trace or {}).get("traceparent", "").split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) == 4 else {}
