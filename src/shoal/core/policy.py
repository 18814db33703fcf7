"""The contract of a rule that forms batches, and the short way to write one.

A policy holds the requests that wait, and decides. It is asked by a slot that is free, and only
then: it says either `Dispatch` (I have a batch, for this reason) or `Wait` (ask me again at that
time, or when so many requests are in line). When it has said `Dispatch`, `take` hands the batch
out. The batcher does all the rest: it lets requests in and refuses them, ends those whose time is
up, wakes the slot, runs the handler.

A policy is called from one task, never waits, and knows no clock but the `now` that it is given.
What `add` raises fails the call that was made; what the others raise breaks the batcher, and every
waiting caller fails with it as the cause. Ours pass `shoal.testing.check_policy`, and so should
yours.

The rival, one function from the whole line to a batch, is the short way (`WholeQueuePolicy`); as
the only way it would make every rule look at every request for every batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.core.batch import DispatchReason
    from shoal.core.request import Request


class Dispatch(NamedTuple):
    """Take up to `size` requests now."""

    size: int
    reason: DispatchReason


class Wait(NamedTuple):
    """Decide again at the time `until` (None for never), or when `wake_at` requests are in line.

    A `wake_at` of 0 leaves it to `BatchPolicy.add` to say that the slot must decide again.
    """

    until: float | None
    wake_at: int = 0


class Pressure(NamedTuple):
    """Why a batch is wanted now: a flush, a drain, or a request whose deadline comes near."""

    reason: DispatchReason
    request: Request | None = None
    """The request that can't wait; None where none can."""


class BatchPolicy(ABC):
    """A rule that forms batches.

    Whatever it decides by, it keeps these promises, which `shoal.testing.check_policy` checks:

    - Every request that is added is handed out by one `take`, or removed, exactly once.
    - With a `Pressure` and a request in line `decide` says `Dispatch`, never `Wait`; if the hurry
      names a request, as often as it is asked until that request has been taken.
    - After `Dispatch`, `take` hands out at least one request and at most ``size``.
    - `Wait` names a time or a number of requests, or `add` says when to decide again, so that no
      request is forgotten; and as long as nothing happens, it is `Dispatch` at the time that it
      named.
    - An empty line makes it `Wait`.
    """

    @abstractmethod
    def add(self, request: Request) -> bool:
        """Takes in a request that waits from now on.

        Returns:
            Whether a slot that waits must decide again now.
        """

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Lets a request go that was added and has not been taken: it has ended where it was."""

    @abstractmethod
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        """Says what a free slot should do.

        Args:
            now: The time on the event loop's clock, in seconds.
            pressure: Why not to wait any more; None for no reason.
        """

    @abstractmethod
    def take(self, dispatch: Dispatch) -> list[Request]:
        """Hands out the batch that the last `decide` was about, in the order of its items."""

    @abstractmethod
    def put_back(self, requests: Sequence[Request]) -> None:
        """Takes requests of the last `take` back, to their old places.

        Some callers turned out to have left, and the batch is decided again without them; these
        are the others, in their order.
        """

    @abstractmethod
    def waiting(self) -> Iterable[Request]:
        """Returns the requests that wait, in the order in which they would be taken."""

    def take_within(self, room: float) -> list[Request]:
        """Hands out those that may join a batch which is open, in order, up to some room in it.

        Only rules that serve open batches have to; the others hand out nobody.
        """
        return []

    def demote(self, request: Request) -> bool:
        """Lets a request that waits go behind the others of its level.

        Only rules that know levels have to; the others leave it where it is.

        Returns:
            Whether it was done.
        """
        return False


class WholeQueuePolicy(BatchPolicy):
    """A rule written as one function of the line: the short way, for rules that look at all of it.

    Subclass it and write `choose`. Each decision costs what `choose` costs.
    """

    def __init__(self) -> None:
        self._queue: dict[Request, None] = {}
        self._before: list[Request] = []  # the line before the last `take`
        self._chosen: list[Request] = []

    @abstractmethod
    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        """Chooses the next batch.

        Args:
            queue: The requests that wait, in order of arrival; at least one.
            now: The time on the event loop's clock, in seconds.
            pressure: Why not to wait any more; None for no reason.

        Returns:
            The requests to run together, in the order of the handler's items, and why they leave
            now; or until when to wait. Every arrival makes it choose again.
        """

    def add(self, request: Request) -> bool:
        """Puts the request at the end of the line; a waiting slot always decides again."""
        self._queue[request] = None
        return True

    def remove(self, request: Request) -> None:
        """Takes the request out of the line."""
        del self._queue[request]

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        """Asks `choose`."""
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
        """Hands out what was chosen."""
        chosen, self._chosen = self._chosen, []
        self._before = list(self._queue)
        for request in chosen:
            del self._queue[request]
        return chosen

    def put_back(self, requests: Sequence[Request]) -> None:
        """Puts the requests back to their places in the line."""
        stay = self._queue.keys() | set(requests)
        self._queue = dict.fromkeys(request for request in self._before if request in stay)

    def waiting(self) -> Iterator[Request]:
        """Yields the line, in order of arrival."""
        return iter(list(self._queue))
