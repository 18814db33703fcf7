"""The task of a connection, which calls the application for one request after another."""

from __future__ import annotations

import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.http.server.http1.call import Call
    from shoal.http.server.shared import Shared

_log = logging.getLogger("shoal.server")


class CallRunner:
    """Calls the application, in a task that is parked between requests.

    The application may have more to do after its answer; then the next request gets another task.
    It gets one as well if this request has set context variables, which the next must not see.

    Args:
        shared: The state of the address.
        ended: Called with each call when the application has returned.
        failed: Called, before that, if what it raised must not be suppressed.

    Attributes:
        running: How many calls are running.
    """

    __slots__ = ("_ended", "_failed", "_is_closed", "_parked", "_shared", "running")

    def __init__(
        self, shared: Shared, ended: Callable[[Call], object], failed: Callable[[], object]
    ) -> None:
        self._shared = shared
        self._ended = ended
        self._failed = failed
        self._is_closed = False
        # The waiter of the task that is parked, and the list that gets what it is woken for.
        self._parked: tuple[Any, list[tuple[Call, dict[str, Any]]]] | None = None
        self.running = 0

    def start(self, call: Call, scope: dict[str, Any]) -> None:
        """Starts a call."""
        parked = self._parked
        if parked is not None:
            self._parked = None
            waiter, woken_for = parked
            woken_for.append((call, scope))
            self._shared.wake(waiter)
        else:
            # Not in the context of the application, which may have called this.
            shared = self._shared
            shared.context.run(shared.tasks.start_soon, self._run, call, scope)

    def close(self) -> None:
        """Ends the task, unless a call is running; then it ends after that."""
        self._is_closed = True
        if self._parked is not None:
            (waiter, _), self._parked = self._parked, None
            self._shared.wake(waiter)

    async def _run(self, call: Call, scope: dict[str, Any]) -> None:
        shared = self._shared
        context = copy_context()
        while True:
            shared.started += 1
            self.running += 1
            try:
                await shared.app(scope, call.receive, call.send)
            except Exception as error:
                # The raw path is printable ASCII, so it can't forge a line of the log.
                _log.error("the application failed on %r", scope["raw_path"], exc_info=error)
            except BaseException:
                self._failed()
                raise
            finally:
                shared.finished += 1
                self.running -= 1
                self._ended(call)
            if self._is_closed or self._parked is not None or copy_context() != context:
                return
            del call, scope  # nothing refers to a request while the connection is idle
            woken_for = await self._park()
            if woken_for is None:
                return
            call, scope = woken_for

    async def _park(self) -> tuple[Call, dict[str, Any]] | None:
        """Waits for the next call; returns None if there will be none."""
        woken_for: list[tuple[Call, dict[str, Any]]] = []
        waiter = self._shared.new_waiter()
        self._parked = waiter, woken_for
        try:
            await waiter
        except BaseException:
            self._parked = None
            raise
        return woken_for[0] if woken_for else None
