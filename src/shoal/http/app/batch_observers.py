"""What an application itself learns of its batches: those that failed, and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.failed_batches import FailedBatchLog

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions
    from shoal.core.events import BatchObserver, Observers


class BatchObservers:
    """The observers that an application needs for its own.

    Args:
        settings: The options of the application.
    """

    def __init__(self, settings: HttpOptions) -> None:
        self._of_failed = FailedBatchLog(settings)
        self._of_all: list[BatchObserver] = []
        if settings.server_timing != "never":
            from shoal.http.requests.timed import RequestTimer

            self._of_all.append(RequestTimer())

    def add_to(self, observers: Observers) -> None:
        """Adds them to those of a controller."""
        observers.add(self._of_failed, only_failures=True)
        for one in self._of_all:
            observers.add(one)

    def remove_from(self, observers: Observers) -> None:
        """Removes them again."""
        for one in (self._of_failed, *self._of_all):
            observers.remove(one)
