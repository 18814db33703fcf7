"""The calls that share one request, as the batch of their own requests; see `sharing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import RequestBatch, State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shoal.core.request import Request

_WAITING: Final = (State.PARKED, State.QUEUED)


class Flight(RequestBatch):
    """Calls that wait for one request; the batch that their own requests are in.

    Attributes:
        key: What makes the calls equal.
        leader: The request that the engine has; this is its waiter.
        members: The calls' requests that have not ended, in order.
        buffer: What gives each item of a stream to all calls; None for calls with one result.
    """

    __slots__ = ("_landed", "buffer", "key", "leader", "members")

    leader: Request

    def __init__(self, key: Hashable, landed: Callable[[Flight], object]) -> None:
        self.key = key
        self.members: dict[Request, None] = {}
        self.active = 0
        self.buffer: Any = None  # a `SharedBuffer`
        self.on_left: Callable[[Request | None], object] | None = None
        self._landed = landed

    def admit(self, request: Request) -> None:
        """Adds the request of a call."""
        request.state = State.RUNNING
        request.batch = self
        self.members[request] = None
        self.active += 1

    def let_go(self) -> None:
        """Drops what refers to this object, which no call is in any more.

        Else each would stay until the garbage collector runs, with the requests of its calls.
        """
        self.on_left = None
        if self.leader.waiter is self:  # a stream's waiter asks for the state of the leader later
            del self.leader

    # What the engine calls on the waiter of the leader, where that has one result.

    def wake(self) -> None:
        """Ends the calls, since the leader has ended."""
        self._landed(self)

    @property
    def flight(self) -> Flight:
        """Itself; the waiters of all leaders have it."""
        return self

    @property
    def waits(self) -> bool:
        """Whether the leader has not been dispatched yet."""
        return self.leader.state in _WAITING

    def done(self) -> bool:
        """Returns False: the last call that leaves abandons the leader itself."""
        return False
