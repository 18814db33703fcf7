"""How one run of a server went: what both servers keep of it, and the lifespan's part in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.http.server.config import Drained

if TYPE_CHECKING:
    from shoal.http.server.lifespan import Lifespan

# What the application's lifespan may take to end when the drain has used up its time.
LIFESPAN_MARGIN_S: Final = 2.0


@dataclass
class Outcome:
    """How a run goes, as far as it has come.

    Attributes:
        lifespan: The application's lifespan; None where it is not run.
        is_up: Whether clients could connect.
        refused: Why an address can't be listened at.
        finished_before: How many requests had finished when the shutdown began.
        cut: How many were closed by force.
        took_s: How long the drain took, in seconds.
    """

    lifespan: Lifespan | None
    is_up: bool = False
    refused: OSError | None = None
    finished_before: int = 0
    cut: int = 0
    took_s: float = 0.0

    async def application_started(self) -> bool:
        """Waits until the application has started; False if it did not."""
        if self.lifespan is None:
            return True
        await self.lifespan.wait_started()
        return self.lifespan.failure is None

    async def end_application(self, graceful_timeout_s: float) -> None:
        """Ends the lifespan of an application that was served, in what the drain left of its time.

        Args:
            graceful_timeout_s: The time of the drain, in seconds.
        """
        if self.is_up and self.lifespan is not None:
            await self.lifespan.stop(max(graceful_timeout_s - self.took_s, LIFESPAN_MARGIN_S))

    def drained(self, finished: int) -> Drained:
        """Returns how it went.

        Args:
            finished: How many requests have come to an end in the whole run, cut off or not.

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
