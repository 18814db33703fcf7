"""What a connection needs of the protocol that is spoken on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.events import Event


class StreamProtocol(Protocol):
    """What a connection needs of the protocol that it speaks."""

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open."""
        ...

    @property
    def is_client_done(self) -> bool:
        """Whether nothing more is expected from the client."""
        ...

    async def handle(self, event: Event) -> None:
        """Handles data from the socket, or its end."""
        ...

    def handle_now(self, data: bytes) -> Callable[[], Awaitable[None] | None] | None:
        """Reads data from the socket that is one small message for the application.

        Returns:
            Passes on the message: it is called before anything else is handled, in a task. If it
            returns something, that is awaited. None if the data is something else, and nothing was
            done.
        """
        ...

    @property
    def has_websockets(self) -> bool:
        """Whether a WebSocket is open."""
        ...

    async def ping(self) -> None:
        """Asks the client for a sign of life, if a WebSocket is open."""
        ...

    def farewell(self) -> bytes:
        """Returns what is sent before an idle connection is closed."""
        ...

    async def close_websockets(self) -> None:
        """Closes open WebSockets, with the reason that the server restarts."""
        ...

    def forget(self) -> None:
        """Drops the state of the connection, which has ended; it is not used any more.

        The libraries' objects refer to themselves. So they would stay until the garbage collector
        runs, and with HTTP/2 that is 100 KiB for a connection.
        """
        ...
