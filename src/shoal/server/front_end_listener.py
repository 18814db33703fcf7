"""The listener of a server whose worker processes accept the clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import anyio

    from shoal.asgi.connections import CountedConnections
    from shoal.server.connection_limit import LimitedListener
    from shoal.server.shared import Shared


class FrontEndListener(Protocol):
    """A listener whose clients are accepted by worker processes."""

    bound: LimitedListener
    shared: Shared
    started: Callable[[str], object]  # called with the URL once clients can connect
    url: str
    failure: str | None  # why no worker can serve any more
    ended: anyio.Event  # set when all workers have ended, after a drain

    @property
    def connections(self) -> CountedConnections: ...

    async def run(self) -> None:
        """Keeps the workers running until the server drains and they have ended."""
        ...

    async def open(self) -> None:
        """Lets the workers accept clients; raises `OSError` if it can't listen."""
        ...

    async def accept(self) -> None:
        """Waits until it is cancelled: the workers accept."""
        ...

    def announce_end(self) -> None:
        """Closes this process's socket, and lets the workers drain."""
        ...

    def drain(self) -> None:
        """Does nothing: the workers close their sockets."""
        ...

    def abort(self) -> None:
        """Lets the workers close all connections by force."""
        ...


StartFrontEnds: TypeAlias = Callable[
    ["LimitedListener", "Shared", Callable[[str], object], str, Callable[[], object]],
    FrontEndListener,
]
"""Makes the listener: from the socket, what the requests share, what is called with the URL once
clients can connect, the URL, and what is called if none of the processes can serve any more."""
