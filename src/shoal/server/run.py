"""The outcome of one run of a server, and what its listeners have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import anyio

from shoal.server.listeners import Inherited, Tcp, Unix

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions
    from shoal.server.connection_limit import LimitedListener
    from shoal.server.listeners import Address
    from shoal.server.shared import Shared


class WorkersFailed(Exception):
    """None of the worker processes could speak HTTP for the server."""


@dataclass(frozen=True, kw_only=True)
class Drained:
    started: bool  # it has listened; False if it was shut down while the application started
    served: int = 0  # requests and WebSockets of the whole run that ended by themselves
    finished: int = 0  # those among them that were running at the shutdown, or arrived just after
    cut: int = 0  # requests and WebSockets that did not end in time
    took_s: float = 0.0  # from the shutdown until the last connection had ended
    failure: str | None = None  # of the application's lifespan after it had started


def address_of(options: HttpOptions) -> Address:
    if options.uds is not None:
        return Unix(options.uds, int(options.uds_mode, 8))
    return Tcp(options.host, options.port) if options.fd is None else Inherited(options.fd)


@dataclass(eq=False)
class Listener:
    """One address: its application, its socket, and the state that its connections share."""

    # The server calls these methods in the order of `open`, `accept`, `announce_end`, `drain`,
    # `abort`.

    bound: LimitedListener
    shared: Shared
    on_listening: Callable[[], object]  # called once clients can connect

    failure: str | None = field(default=None, init=False)  # why it can't serve any more
    # Calls that it has cancelled, and that were not cut off.
    lost: int = field(default=0, init=False)

    async def open(self) -> None:
        """Lets clients connect; raises `OSError` if it can't listen."""
        self.bound.listen()

    async def accept(self) -> None:
        """Accepts clients until it is cancelled, unless others do that."""
        await anyio.sleep_forever()

    def announce_end(self) -> None:
        """Begins the drain, before the server cancels `accept`."""
        # Every response from now on has "Connection: close", so that its client does not send the
        # next request on a connection that is about to end.
        self.shared.drain()

    def drain(self) -> None:
        """Accepts the clients that the kernel still holds, unless others do that."""

    def abort(self) -> None:
        """Closes the connections that are left by force; also called if none are."""
        for connection in tuple(self.shared.connections):
            connection.abort()


@dataclass(eq=False)
class FrontEndListener(Listener):
    """A listener whose clients are accepted by worker processes, or by another server."""

    failed: Callable[[], object]  # to be called once it has a `failure`

    is_for_each_address: ClassVar[bool]  # or for the first address of the application only

    @abstractmethod
    async def run(self) -> None:
        """Serves until the server drains and all workers have ended."""


# Makes the listener. The arguments: the socket, the state that requests share, and two functions,
# to call once clients can connect, and if no worker can serve any more.
StartFrontEnds: TypeAlias = Callable[
    ["LimitedListener", "Shared", Callable[[], object], Callable[[], object]], FrontEndListener
]
