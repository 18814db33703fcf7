"""The log of failed batches: one line for each, with the error and the ids of its requests.

Items and results are not logged. The traceback of a handler's error is, and so its text, which is
the handler's own.

`batch_observers` are this log and, with ``server_timing``, what fills in the times of requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from shoal.core.events import BatchObserver
from shoal.core.request import State
from shoal.failures.exceptions import users_part
from shoal.http.requests.problem import marked_as_logged, problem_of
from shoal.loops.event_loop import EventLoop
from shoal.observe.failures import id_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.core.events import BatchRecord
    from shoal.core.request import Batch, Request

LOGGER: Final = "shoal.batches"

_MOST_IDS: Final = 64

_log: Final = logging.getLogger(LOGGER)


class _Failures:
    """Requests of one batch that failed and were not logged yet."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        # Internal: no caller sees the cause, so the log must have it. New: not logged before.
        self.is_internal = self.is_new = False
        self.count = 0
        self.ids: list[str] = []

    def add(self, request: Request, error: Exception, *, is_internal: bool) -> None:
        original, is_new = marked_as_logged(error)
        if self.error is None or (is_internal and not self.is_internal):
            self.error, self.is_new = original, is_new
        self.is_internal = self.is_internal or is_internal
        self.count += 1
        if len(self.ids) < _MOST_IDS:
            self.ids.append(id_of(request) or "-")

    def log(self, batcher: str, batch: int, size: int, more: Mapping[str, object]) -> None:
        name = type(self.error).__name__
        rest = self.count - len(self.ids)
        _log.log(
            logging.ERROR if self.is_internal else logging.WARNING,
            "%s: batch %d failed: %s, %d of %d requests (%s)",
            batcher,
            batch,
            name,
            self.count,
            size,
            ", ".join(self.ids) + (f" and {rest} more" if rest > 0 else ""),
            exc_info=_info_of(self.error) if self.is_internal and self.is_new else None,
            extra={
                "backend": batcher,
                "batch": batch,
                "error": name,
                "size": size,
                "failed": self.count,
                "request_ids": self.ids,
                **more,
            },
        )


def _info_of(error: BaseException | None) -> Any:
    """Returns an error for the log, with the frames of the user's code; with all if it has none."""
    if error is None:
        return None
    whole = error.__traceback__
    return type(error), error, users_part(whole) or whole


class FailedBatchLog(BatchObserver):
    """Logs the batches in which a request failed, unless the code chose the status."""

    # A continuous batch runs as long as its backend is open, so its requests that fail together are
    # logged at once, in one message.

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        # The failures of open batches, by batcher and id.
        self._open: dict[tuple[str, int], _Failures] = {}

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        key = batcher, batch.id
        failures = self._open.get(key) or _Failures()
        self._add(failures, request, request.error)
        if not failures.count or key in self._open:
            return
        self._open[key] = failures
        if batch.is_continuous:
            EventLoop.here().soon(self._log_open, key, batch)

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        failures = self._open.pop((record.batcher, record.id), None) or _Failures()
        if not record.is_open:
            for request in requests:
                error = record.error if request.error is None else request.error
                self._add(failures, request, error)
        if failures.count:
            more: dict[str, object] = {"run_s": round(record.run_s, 6), **_trace_of(record.trace)}
            failures.log(record.batcher, record.id, record.size, more)

    def _log_open(self, key: tuple[str, int], batch: Batch) -> None:
        failures = self._open.pop(key, None)
        if failures is not None:  # else its batch has ended, and they were logged
            failures.log(*key, batch.size, _trace_of(batch.trace))

    def _add(self, failures: _Failures, request: Request, error: BaseException | None) -> None:
        if request.state is not State.FAILED or not isinstance(error, Exception):
            return
        problem = problem_of(error, self._options)
        if problem.status >= 500 and problem.kind:  # else the code itself has chosen the response
            failures.add(request, error, is_internal=problem.kind == "internal")


def _trace_of(trace: Mapping[str, str] | None) -> dict[str, str]:
    parts = (trace or {}).get("traceparent", "").split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) == 4 else {}


def batch_observers(options: HttpOptions) -> list[BatchObserver]:
    observers: list[BatchObserver] = [FailedBatchLog(options)]
    if options.server_timing != "never":
        from shoal.http.requests.timed import RequestTimer

        observers.append(RequestTimer(times_all=options.server_timing == "always"))
    return observers
