"""The interface of a batch policy, and a base class for simple ones.

A policy holds the queued requests and decides when a batch is dispatched. Only a free worker slot
(a task that runs batches) asks it. It returns either `Dispatch` (a batch is ready, for this reason)
or `Wait` (ask again at that time, or when that many requests are queued). After `Dispatch`, `take`
returns the batch. The batcher does the rest: it admits and refuses requests, ends those that have
timed out, wakes the slot and runs the handler.

A policy is called from one task, never blocks, and reads no clock but the `now` that it is given.
An error raised by `add` fails that call; an error raised by another method breaks the batcher, and
every waiting caller fails with it as the cause. Shoal's own policies pass
`shoal.testing.check_policy`; check your own with it, too.

The alternative, one function from the whole queue to a batch, is simpler to write, and available as
`WholeQueuePolicy`. As the only interface it would make every policy look at every request for every
batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.core.request import DispatchReason, Request


class Dispatch(NamedTuple):
    """The decision to dispatch a batch of up to `size` requests now."""

    size: int
    reason: DispatchReason


class Wait(NamedTuple):
    """The decision to wait until the time `until` (None for no limit) or for `wake_at` requests.

    The slot asks again at that time, or as soon as `wake_at` requests are queued. With a `wake_at`
    of 0, `BatchPolicy.add` decides when the slot must ask again.
    """

    until: float | None
    wake_at: int = 0


class Pressure(NamedTuple):
    """Why a batch must be dispatched now: a flush, a drain, a retry or a near deadline."""

    reason: DispatchReason
    request: Request | None = None
    """The request that can't wait any longer; None if it applies to all."""


class BatchPolicy(ABC):
    """A rule that forms batches.

    Every policy must keep these promises, which `shoal.testing.check_policy` checks:

    - Every request that is added is returned by one `take`, or removed, exactly once.
    - With a `Pressure` and at least one queued request, `decide` returns `Dispatch`, never `Wait`.
      If the pressure names a request, it does so on every call until that request has been taken.
    - After `Dispatch`, `take` returns at least one request and at most ``size``.
    - `Wait` names a time or a number of requests, or `add` asks for a decision, so that no
      request is forgotten. If nothing else happens, `decide` returns `Dispatch` at the time that
      `Wait` named.
    - With an empty queue, `decide` returns `Wait`.
    """

    @abstractmethod
    def add(self, request: Request) -> bool:
        """Adds a request to the queue.

        Returns:
            Whether a waiting slot must decide again now.
        """

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Removes a queued request that has ended before it was taken."""

    @abstractmethod
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        """Decides whether a free slot dispatches a batch or waits.

        Args:
            now: The time on the event loop's clock, in seconds.
            pressure: Why a batch must be dispatched now; None if it may wait.
        """

    @abstractmethod
    def take(self, dispatch: Dispatch) -> list[Request]:
        """Removes the batch of the last `decide` from the queue; returns it in item order."""

    @abstractmethod
    def put_back(self, requests: Sequence[Request]) -> None:
        """Puts requests of the last `take` back to their old positions.

        It is called if some callers of the batch have left since. The other requests are put back,
        in order, and the slot decides again.
        """

    @abstractmethod
    def waiting(self) -> Iterable[Request]:
        """Returns the queued requests, in the order in which they would be taken."""

    def demote(self, request: Request) -> bool:
        """Moves a queued request behind the others of its priority level.

        Only policies with priority levels need it; by default the request keeps its position.

        Returns:
            Whether it was moved.
        """
        return False


class WholeQueuePolicy(BatchPolicy):
    """A policy that is written as one function of the whole queue.

    Subclass it and implement `choose`, which is called for each decision.
    """

    def __init__(self) -> None:
        self._queue: dict[Request, None] = {}
        self._before: list[Request] = []  # the queue before the last `take`
        self._chosen: list[Request] = []

    @abstractmethod
    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        """Chooses the next batch.

        Args:
            queue: The queued requests, in order of arrival; at least one.
            now: The time on the event loop's clock, in seconds.
            pressure: Why a batch must be dispatched now; None if it may wait.

        Returns:
            The requests to run together, in the order of the handler's items, and the dispatch
            reason; or `Wait`. It is called again on every arrival.
        """

    def add(self, request: Request) -> bool:
        """Appends the request to the queue; a waiting slot always decides again."""
        self._queue[request] = None
        return True

    def remove(self, request: Request) -> None:
        """Removes the request from the queue."""
        del self._queue[request]

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        """Calls `choose`."""
        if not self._queue:
            self._before.clear()
            return Wait(None)
        chosen = self.choose(list(self._queue), now, pressure)
        if isinstance(chosen, Wait):
            return chosen
        requests, reason = chosen
        self._chosen = list(requests)
        return Dispatch(len(self._chosen), reason)

    def take(self, dispatch: Dispatch) -> list[Request]:
        """Removes and returns the chosen requests."""
        chosen, self._chosen = self._chosen, []
        self._before = list(self._queue)
        for request in chosen:
            del self._queue[request]
        return chosen

    def put_back(self, requests: Sequence[Request]) -> None:
        """Puts the requests back to their positions in the queue."""
        stay = self._queue.keys() | set(requests)
        self._queue = dict.fromkeys(request for request in self._before if request in stay)

    def waiting(self) -> Iterator[Request]:
        """Yields the queued requests, in order of arrival."""
        return iter(list(self._queue))
