"""A batch: the requests that run together, and why it was dispatched."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from shoal.core.request import RequestBatch, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from shoal.core.request import Request


class DispatchReason(StrEnum):
    """Why a batch was dispatched."""

    FULL = "full"
    """It had reached ``max_batch_size``, or another size at which a batch is dispatched."""
    TIMER = "timer"
    """Its oldest request had waited for ``batch_wait_timeout_s``."""
    IDLE = "idle"
    """No request had arrived for ``idle_timeout_s``."""
    REGATHER = "regather"
    """The callers of the last batch were waited for: those expected are back, or late."""
    DEADLINE = "deadline"
    """One of its requests would have missed its deadline by waiting longer."""
    FLUSH = "flush"
    """`Batcher.flush` was called."""
    DRAIN = "drain"
    """The batcher is closing, and no longer waits for batches to fill."""
    OPEN = "open"
    """It is an open batch: requests join it while the handler runs."""


class Draining(Protocol):
    """An event that tells a handler that its batcher is draining and it must end soon."""

    def is_set(self) -> bool:
        """May be called from any thread."""
        ...

    def wait(self) -> Awaitable[None]: ...


class _Never:
    def is_set(self) -> bool:
        return False

    def wait(self) -> Awaitable[None]:
        raise RuntimeError("this batch has no batcher, so its draining event is never set")


NEVER: Final[Draining] = _Never()


class Batch(RequestBatch):
    """The batch that a handler was called with.

    Attributes:
        id: A number that is unique within the batcher.
        reason: Why the batch was dispatched.
        members: Its requests; internal to the engine, which reads them after the handler has run.
        size: The number of its requests.
        arrived_at: When the oldest of the requests it began with arrived, in seconds on the event
            loop's clock; 0 until it begins.
        failure: The first error that one of its requests ended with; internal to the engine.
        free_at: When a worker slot became free for it, on that clock; internal to the engine.
        group: The waiter of all its requests, if they have one in common; internal to the engine.
        trace: The headers with which a call continues the batch's trace, such as W3C's
            ``traceparent``; None if it is not traced. Set by an observer when it begins.
        surroundings: A context manager around its handler; None for none. Set by an observer.
        is_continuous: Whether requests join it for as long as its batcher is open.
        load: The sum of their costs, including padding.
        draining: Set when the batcher starts to close. A handler of endless streams should then end
            them; it is cancelled after ``graceful_shutdown_timeout_s``.
        is_overdue: Whether its handler has used up the operator's time: ``handler_timeout_s`` or
            ``graceful_shutdown_timeout_s``. Callers that leave don't make it overdue.
        on_overdue: Called when it becomes overdue; internal to the engine.
    """

    __slots__ = (
        *("arrived_at", "draining", "failure", "free_at", "group", "id", "is_continuous", "load"),
        *("is_overdue", "members", "on_overdue", "reason", "size", "surroundings", "trace"),
    )

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
        self.arrived_at = 0.0
        self.failure: BaseException | None = None
        self.free_at = 0.0
        self.group: Any = None
        self.is_continuous = self.is_overdue = False
        self.on_overdue: Callable[[], object] | None = None
        self.trace: Mapping[str, str] | None = None
        self.surroundings: AbstractContextManager[object] | None = None
        self.load: float = self.size if load is None else load
        self.active = self.size
        self.on_left = None

    @property
    def requests(self) -> tuple[Request, ...]:
        """Its requests, in the order of the items that the handler was given.

        Requests of an open batch that have ended are left out. The tuple is empty once the handler
        has ended: an object that keeps the handler's context alive, such as a cancelled asyncio
        timer, also keeps the batch alive, and must not keep items and results.
        """
        return tuple(self.members)

    def admit(self, requests: list[Request]) -> None:
        """Adds requests that join while the handler runs."""
        for request in requests:
            request.state = State.RUNNING
            request.batch = self
        self.members += requests
        self.size += len(requests)
        self.active += len(requests)

    def set_overdue(self) -> None:
        """Records that its handler must end now."""
        self.is_overdue = True
        if self.on_overdue is not None:
            self.on_overdue()

    def __repr__(self) -> str:
        return f"<Batch {self.id} size={self.size} reason={self.reason}>"
