"""What a WebSocket that has its connection for itself offers: to send in no task of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Outlet(Protocol):
    """The connection, as what sends on it has it."""

    def soon(self, work: Callable[[], Awaitable[None] | None]) -> None:
        """Has a task that all connections share call a function, soon; see `Workers`."""
        ...

    def is_blocked(self) -> bool:
        """Returns whether what was sent waits for the client."""
        ...

    def send_now(self, data: bytes) -> None:
        """Sends data at once, on a connection that is not blocked."""
        ...

    def abort(self) -> None:
        """Closes the connection by force."""
        ...


class SocketWork:
    """What `Workers` do for a connection; the application's call on it has a task of its own.

    Args:
        raw_path: The path of the WebSocket, as sent.
        abort: Closes the connection by force.
    """

    suspended: object = True  # the call has not ended, whatever is done for it
    was_left = False

    def __init__(self, raw_path: bytes, abort: Callable[[], None]) -> None:
        self.raw_path = raw_path
        self.abort = abort

    def begin(self) -> Awaitable[None] | None:
        """Is not called; see `Workers.start`."""
        raise NotImplementedError

    def end(self) -> None:
        """Is not called, since the call has not ended."""
        raise NotImplementedError
