"""The calls that share one request, as the batch of their own requests; see `sharing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import RequestBatch, State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shoal.core.request import Request

_WAITING: Final = (State.PARKED, State.QUEUED)


class Flight(RequestBatch):
    """Calls that wait for one request; also the batch of their own requests."""

    __slots__ = ("_landed", "buffer", "key", "leader", "members")

    # The request in the engine; this object is its waiter.
    leader: Request

    def __init__(self, key: Hashable, landed: Callable[[Flight], object]) -> None:
        # Equal for calls that share the request.
        self.key = key
        # The calls' requests that have not ended, in order.
        self.members: dict[Request, None] = {}
        self.active = 0
        # Gives each item of a stream to all calls; None for calls with one result.
        self.buffer: Any = None  # a `SharedBuffer`
        self.on_left: Callable[[Request | None], object] | None = None
        self._landed = landed

    def admit(self, request: Request) -> None:
        request.state = State.RUNNING
        request.batch = self
        self.members[request] = None
        self.active += 1

    def let_go(self) -> None:
        """Drops the references to this object once no call is in it."""
        # Otherwise each flight, with the requests of its calls, stays until the garbage collector
        # runs.
        self.on_left = None
        if self.leader.waiter is self:  # a stream's waiter asks for the state of the leader later
            del self.leader

    # What the engine calls on the waiter of the leader, where that has one result.

    def wake(self) -> None:
        """Ends the calls, since the leader has ended."""
        self._landed(self)

    @property
    def flight(self) -> Flight:
        """Itself; the waiters of all leaders have this attribute."""
        return self

    @property
    def waits(self) -> bool:
        """Whether the leader was not dispatched yet."""
        return self.leader.state in _WAITING

    def done(self) -> bool:
        # The last call that leaves abandons the leader itself.
        return False
