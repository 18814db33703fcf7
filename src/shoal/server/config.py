"""What a server makes of its options, and the outcome of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.server.listeners import Inherited, Tcp, Unix

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions
    from shoal.asgi.lifespan import Lifespan
    from shoal.server.listeners import Address


class WorkersFailed(Exception):
    """No process could speak HTTP for the server."""


@dataclass(frozen=True, kw_only=True)
class Drained:
    """The outcome of a server's run.

    Attributes:
        started: Whether it ever listened; False if it was shut down while the application started.
        served: How many requests and WebSockets of the whole run ended by themselves.
        finished: How many of these were running when shutdown began, or arrived just after.
        cut: How many requests and WebSockets did not end in time.
        took_s: Seconds from the shutdown until the last connection had ended.
        failure: The failure of the application's lifespan after it had started, or None.
    """

    started: bool
    served: int = 0
    finished: int = 0
    cut: int = 0
    took_s: float = 0.0
    failure: str | None = None


def address_of(options: HttpOptions) -> Address:
    """Returns the address to listen at."""
    if options.uds is not None:
        return Unix(options.uds, int(options.uds_mode, 8))
    return Tcp(options.host, options.port) if options.fd is None else Inherited(options.fd)


# How long the application's lifespan may take to end when the drain has used up its time.
LIFESPAN_MARGIN_S: Final = 2.0


@dataclass
class ServerRun:
    """The state of a run of a server.

    Attributes:
        lifespan: The application's lifespan; None if it is not run.
        is_up: Whether the application has started, and clients could connect.
        refused: Why the server can't listen at an address, if it can't.
        finished_before: How many requests had finished when the shutdown began.
        cut: How many requests were closed by force.
        took_s: How long the drain took, in seconds.
    """

    lifespan: Lifespan | None
    is_up: bool = False
    refused: OSError | None = None
    finished_before: int = 0
    cut: int = 0
    took_s: float = 0.0

    async def application_started(self) -> bool:
        """Waits until the application has started; returns False if it failed."""
        if self.lifespan is None:
            return True
        await self.lifespan.wait_started()
        return self.lifespan.failure is None

    async def end_application(self, graceful_timeout_s: float) -> None:
        """Ends the application's lifespan within the time that the drain has left.

        Args:
            graceful_timeout_s: The time limit of the drain, in seconds.
        """
        if self.is_up and self.lifespan is not None:
            await self.lifespan.stop(max(graceful_timeout_s - self.took_s, LIFESPAN_MARGIN_S))

    def drained(self, finished: int) -> Drained:
        """Returns the outcome.

        Args:
            finished: How many requests have ended in the whole run, including those cut off.

        Raises:
            OSError: An address can't be listened at.
            LifespanFailed: The application did not start.
        """
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
