"""One batch: the requests that travel together, and why they left when they did."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from shoal.core.request import RequestBatch, State

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shoal.core.request import Request


class DispatchReason(StrEnum):
    """Why a batch was cut."""

    FULL = "full"
    """It had reached ``max_batch_size``, or another size that is worth a batch."""
    TIMER = "timer"
    """Its oldest request had waited for ``batch_wait_timeout_s``."""
    IDLE = "idle"
    """No request had come for ``idle_timeout_s``."""
    DEADLINE = "deadline"
    """A request of it would have missed its deadline had it waited any longer."""
    FLUSH = "flush"
    """`Batcher.flush` was called."""
    DRAIN = "drain"
    """The batcher is closing, and no longer waits for company."""
    OPEN = "open"
    """It was not cut: it takes requests while the handler runs."""


class Draining(Protocol):
    """Tells a handler that it is to come to its end: an `anyio.Event` that others set."""

    def is_set(self) -> bool:
        """Says whether the batcher drains; from any thread."""
        ...

    def wait(self) -> Awaitable[None]:
        """Waits until it does."""
        ...


class _Never:
    """Stands in where nobody says it."""

    def is_set(self) -> bool:
        return False

    def wait(self) -> Awaitable[None]:
        raise RuntimeError("nobody tells this batch when its batcher drains")


NEVER: Final[Draining] = _Never()


class Batch(RequestBatch):
    """What a handler knows about the batch that it was called for.

    Attributes:
        id: A number that no other batch of this batcher has.
        reason: Why the batch was cut.
        members: Its requests, for the engine alone, which reads them again after the handler ran.
        size: How many requests it has.
        load: What their costs sum up to, and padding with them.
        draining: Set when the batcher begins to end. A handler of streams without an end ends them
            then; what goes on for longer than ``graceful_shutdown_timeout_s`` is cancelled.
    """

    __slots__ = ("draining", "id", "load", "members", "reason", "size")

    def __init__(
        self,
        id_: int,
        reason: DispatchReason,
        requests: list[Request],
        load: float | None = None,
        draining: Draining = NEVER,
    ) -> None:
        self.draining = draining
        self.id = id_
        self.reason = reason
        self.members = requests
        self.size = len(requests)
        self.load: float = self.size if load is None else load
        self.active = self.size
        self.on_left = None

    @property
    def requests(self) -> tuple[Request, ...]:
        """Its requests, in the order of the items that the handler was given.

        Of a batch that takes requests while its handler runs, those that have ended are left out.
        There are none once the handler has ended: whatever keeps its context keeps the batch, such
        as a timer of asyncio's that was cancelled, and that must not keep items and results.
        """
        return tuple(self.members)

    def admit(self, requests: list[Request]) -> None:
        """Takes in requests that join while the handler runs."""
        for request in requests:
            request.state = State.RUNNING
            request.batch = self
        self.members += requests
        self.size += len(requests)
        self.active += len(requests)

    def __repr__(self) -> str:
        return f"<Batch {self.id} size={self.size} cut={self.reason}>"
