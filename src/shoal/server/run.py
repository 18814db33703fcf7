"""The state and the outcome of one run of a server, and the listener of its worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from shoal.server.listeners import Inherited, Tcp, Unix

if TYPE_CHECKING:
    import anyio

    from shoal.asgi.extensions import CountedConnections
    from shoal.asgi.http_options import HttpOptions
    from shoal.asgi.lifespan import AppLifespan
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


# How long the application's lifespan may take to end if the drain has used up its time.
LIFESPAN_MARGIN_S: Final = 2.0


@dataclass
class ServerRun:
    lifespan: AppLifespan | None
    is_up: bool = False  # the application has started, and clients could connect
    refused: OSError | None = None  # why the server can't listen at an address
    finished_before: int = 0  # requests that had finished when the shutdown began
    cut: int = 0  # requests that were cut off
    took_s: float = 0.0

    async def application_started(self) -> bool:
        """Waits for the application's start; returns False if it failed."""
        if self.lifespan is None:
            return True
        await self.lifespan.wait_started()
        return self.lifespan.failure is None

    async def end_application(self, graceful_timeout_s: float) -> None:
        """Ends the lifespan within the time that the drain has left."""
        if self.lifespan is None:
            return
        if self.is_up:
            await self.lifespan.stop(max(graceful_timeout_s - self.took_s, LIFESPAN_MARGIN_S))
        elif self.lifespan.failure is None:
            self.lifespan = None  # it will be cancelled, which Starlette reports as a failure

    def drained(self, finished: int) -> Drained:
        """Returns the outcome; raises the error that prevented the start."""
        failure = None if self.lifespan is None else self.lifespan.failure
        if self.is_up:
            served = finished - self.cut
            return Drained(
                started=True,
                served=served,
                finished=served - self.finished_before,
                cut=self.cut,
                took_s=self.took_s,
                failure=None if failure is None else f"{failure}\n{failure.details}".rstrip(),
            )
        if failure is not None:
            raise failure
        if self.refused is not None:
            raise self.refused
        return Drained(started=False)


class FrontEndListener(Protocol):
    """A listener whose clients are accepted by worker processes, or by another server."""

    # Beside it, the server has listeners of its own, and calls the same methods of both, in the
    # order of `open`, `accept`, `announce_end`, `drain`, `abort`.

    is_for_each_address: bool  # or for the first address of the application only
    shared: Shared
    url: str
    failure: str | None  # why no worker can serve any more
    lost: int  # calls that it has cancelled, and that were not cut off
    ended: anyio.Event  # set when all workers have ended, after a drain

    @property
    def connections(self) -> CountedConnections | None: ...

    @property
    def on_listening(self) -> Callable[[str], object]: ...  # called with the URL

    async def run(self) -> None:
        """Keeps the workers running until the server drains and they have ended."""

    async def open(self) -> None:
        """Lets the workers accept clients; raises `OSError` if it can't listen."""

    async def accept(self) -> None:
        """Waits until it is cancelled, while the workers accept clients."""

    def announce_end(self) -> None:
        """Begins the drain, before the server cancels `accept`: the workers end by themselves."""

    def drain(self) -> None:
        """Accepts the clients that the kernel still holds, unless the workers do that."""

    def abort(self) -> None:
        """Closes the connections that are left by force; also called if none are."""


# Makes the listener. The arguments: the socket, the state that requests share, a function for the
# URL once clients can connect, the URL, and a function that is called if no worker can serve any
# more.
StartFrontEnds: TypeAlias = Callable[
    ["LimitedListener", "Shared", Callable[[str], object], str, Callable[[], object]],
    FrontEndListener,
]
