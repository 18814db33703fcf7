"""What the server needs of a listener whose clients are accepted by other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import anyio

    from shoal.asgi.connections import CountedConnections
    from shoal.server.connection_limit import LimitedListener
    from shoal.server.shared import Shared


class FrontEndListener(Protocol):
    """A listener whose clients are accepted by other processes; see `shoal.front_ends`.

    Attributes:
        bound: The socket that they accept clients from.
        shared: What the requests share that they pass on.
        started: Called with the URL once clients can connect.
        url: The URL.
        failure: Why none of them can serve any more; None as long as one may.
        ended: Set when all have ended, after a drain.
    """

    bound: LimitedListener
    shared: Shared
    started: Callable[[str], object]
    url: str
    failure: str | None
    ended: anyio.Event

    @property
    def connections(self) -> CountedConnections:
        """The connections of all of them."""
        ...

    async def run(self) -> None:
        """Keeps the processes until the server drains and they have ended."""
        ...

    async def open(self) -> None:
        """Has the processes accept clients, once they can.

        Raises:
            OSError: Another process listens at the address.
        """
        ...

    async def accept(self) -> None:
        """Waits until it is cancelled: the processes accept."""
        ...

    def announce_end(self) -> None:
        """Closes this process's socket, and has the processes drain."""
        ...

    def drain(self) -> None:
        """Does nothing more: the processes close their sockets."""
        ...

    def abort(self) -> None:
        """Has the processes close all connections by force."""
        ...


StartFrontEnds: TypeAlias = Callable[
    ["LimitedListener", "Shared", Callable[[str], object], str, Callable[[], object]],
    FrontEndListener,
]
"""Makes the listener: from the socket, what the requests share, what is called with the URL once
clients can connect, the URL, and what is called if none of the processes can serve any more."""
