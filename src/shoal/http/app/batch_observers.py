"""The observers that an application itself needs: of failed batches, and of times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.failed_batches import FailedBatchLog

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions
    from shoal.core.events import BatchObserver, Observers


class BatchObservers:
    def __init__(self, settings: HttpOptions) -> None:
        self._of_failed = FailedBatchLog(settings)
        self._of_all: list[BatchObserver] = []
        if settings.server_timing != "never":
            from shoal.http.requests.timed import RequestTimer

            self._of_all.append(RequestTimer())

    def add_to(self, observers: Observers) -> None:
        observers.add(self._of_failed, only_failures=True)
        for one in self._of_all:
            observers.add(one)

    def remove_from(self, observers: Observers) -> None:
        for one in (self._of_failed, *self._of_all):
            observers.remove(one)
