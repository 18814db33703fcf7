"""The line of a batcher: who is let in, who leaves, and when a free slot takes a batch.

What a batch is made of is a policy's to decide (`policies`), and `Waiting` asks it; here is who may
wait at all, and for how long. All of it decides, others act: whoever has a clock asks again when
`Wait` says so, and ends what is `overdue`; whoever has slots tells how many are idle. So the engine
and the simulation run the same line.

Invariants:
    ``parked`` == number of requests in ``_parked`` in the state PARKED.
    A request is parked only while there is no room, so parked ones never overtake each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.forming.admission import Admission, Gate, Parked, needs_a_gate
from shoal.core.forming.overdue import Overdue
from shoal.core.forming.waiting import Waiting
from shoal.core.policies.factory import tells_requests_apart
from shoal.core.policies.size_or_wait import SizeOrWait
from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.core.batch import Batch
    from shoal.core.options.options import BatchOptions

QUEUED = State.QUEUED
PARKED = State.PARKED


class Former(Waiting):
    """The line of one batcher.

    Attributes:
        parked: How many requests wait to be let in.
        room: How many requests may be in line; above it, calls meet the overload rule. Requests
            that an idle slot takes at once do not count as waiting, so a burst into an idle batcher
            is let in.
        idle_slots: How many slots are idle; infinity where their number has no bound.
        open_room: How much more the batches take that are open.
        closed: Whether nobody is let in any more.
        overdue: Which requests have run out of time.
        batches: The batches in the handler and since when, in seconds; whoever runs them sets it.
        free_room: The same for requests with nothing but an item; minus infinity where each has to
            be looked at.
        is_ungated: Whether a request may be put in line as soon as there is room.
        takes_anyone: Whether one that has nothing but an item may be, by `append` alone.
        awaits_change: Whether options are to change as soon as no batch gathers, so that each
            request has to be looked at.
    """

    __slots__ = (
        "_gate",
        "_parked",
        "awaits_change",
        "batches",
        "closed",
        "free_room",
        "idle_slots",
        "is_ungated",
        "open_room",
        "overdue",
        "parked",
        "room",
        "takes_anyone",
    )

    def __init__(self, options: BatchOptions) -> None:
        self._gate: Gate | None = None
        self._parked = Parked()
        self.parked = 0
        self.overdue = Overdue(lambda request: self._policy.demote(request), options)
        self.batches: Mapping[Batch, float] = {}
        self.closed = self.awaits_change = False
        self.idle_slots: float = 0
        self.open_room: float = 0
        self.room: float = 0
        self.free_room: float = 0
        super().__init__(options)

    def admit(self, request: Request) -> Admission:
        """Lets a request in, parks it, or says why not.

        Args:
            request: A new one, in no state yet.
        """
        gate = self._gate
        if gate is not None and not self.closed:
            refusal = gate.full_level(request, self._takes_at_once())
            if refusal is None:
                refusal = gate.lateness(request, request.arrived_at, self.batches)
            if refusal is not None:
                return Admission(refusal)
        victim = None
        # Who comes does not overtake who waits to be let in.
        if self.parked or not self._fits(1, request.cost):
            if self.closed:
                return Admission("it is closed")
            if self.options.overload == "wait":
                self._park(request)
                return Admission()
            victim = None if gate is None or self.parked else gate.victim(request)
            if victim is None:
                return Admission(self._fullness())
        request.state = QUEUED
        ring = self.arrive(request)  # first, since a user's rule may raise
        if gate is not None:
            gate.came(request, self.live)
        if victim is not None:
            self._drop(victim, State.FAILED)
        return Admission(victim=victim, ring=ring)

    @property
    def scheduling_capacity(self) -> float:
        """How much more idle slots and open batches would take at once, beyond what is in line."""
        return 0 if self.closed else max(0, self._takes_at_once() - self.size)

    def refusal_of(self, requests: Sequence[Request]) -> str | None:
        """Says why requests can't be let in together; None if that is not certain.

        Nobody is shed for many requests at once: one of them might be refused in the end.
        """
        size = sum([request.cost for request in requests])
        if self.options.overload == "wait" or self._fits(len(requests), size):
            return None
        return self._fullness()

    def leave(self, request: Request, state: State = State.CANCELLED) -> bool:
        """Lets a request go that is queued or parked: its caller has left, or it has failed.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        self._drop(request, state)
        return (self.parked > 0 and self._let_in()) or self._tells_all

    def reform(self, *, idle_slots: float | None = None, open_room: float = 0) -> bool:
        """Takes in another number of idle slots, or a place that is free in line.

        Args:
            idle_slots: How many slots are idle; None for as many as before.
            open_room: How much more the batches take that are open.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        if idle_slots is not None:
            self.idle_slots = idle_slots
            self.open_room = open_room
        bound = self.options.max_queued_requests
        if self.closed:
            self.room = 0
        elif bound is None:
            self.room = math.inf
        elif self.options.batch_size_fn is not None:
            self.room = bound
        else:
            self.room = bound + self._takes_at_once()
        is_free = self.takes_anyone and not self.awaits_change
        self.free_room = self.room if is_free else -math.inf
        return self.parked > 0 and self._let_in()

    def change(
        self, options: BatchOptions, describe: Callable[[Request], Exception | None]
    ) -> list[tuple[Request, BaseException]]:
        """Takes in new options, and files those that wait by them, in order of arrival.

        Args:
            options: The new ones.
            describe: Says anew what a waiting request counts for, or why it can't be served.

        Returns:
            The requests that can't be served under the new options, and why; they have left. That
            may be whatever a user's function or rule has raised.
        """
        queued = list(self._policy.waiting())
        if not isinstance(self._policy, SizeOrWait):
            queued.sort(key=lambda one: (one.arrived_at, one.options.number if one.options else 0))
        parked = list(self._parked)
        self._take_in(options)
        self._urgency.forget_times()
        failed: list[tuple[Request, BaseException]] = []
        for request in (*queued, *parked):
            self.live -= request.state is QUEUED  # it is counted anew where it stays
            error = self._refiled(request, describe)
            if error is not None:
                failed.append((request, error))
                self.parked -= request.state is PARKED
                request.state = State.FAILED
                self._urgency.left(request)
            elif self._gate is not None:
                self._gate.came(request, self.live)
        self.reform()
        return failed

    def close(self) -> None:
        """Lets nobody in any more, and everybody who waits for room at once."""
        self.closed = True
        self.drain()
        self.room = math.inf
        self._let_in()
        self.room = self.free_room = 0

    def put_back(self, requests: Sequence[Request]) -> None:
        """Undoes the last `take`; those of its requests that are not QUEUED now have left."""
        super().put_back(requests)
        if self._gate is not None:
            for request in requests:
                if request.state is QUEUED:
                    self._gate.came_back(request)

    def in_line(self) -> list[Request]:
        """Returns all that wait, parked ones first: so none of them is let in as all leave."""
        return [*self._parked, *self._policy.waiting()]

    def clear(self) -> Iterator[Request]:
        """Empties the line at its end, and yields all that waited in it, parked ones last."""
        waiting = [*self._policy.waiting(), *self._parked]
        self._parked.clear()
        self.live = self.parked = 0
        self._gate = None
        self._file_by(SizeOrWait(self.options))  # a user's own might raise when it is made again
        return iter(waiting)

    def _take_in(self, options: BatchOptions) -> None:
        super()._take_in(options)
        self._gate = Gate(options, self.model) if needs_a_gate(options) else None
        self.overdue.change(options)
        self.is_ungated = self._gate is None
        self.takes_anyone = self.is_ungated and not tells_requests_apart(options)

    def _handed_out(self, taken: list[Request]) -> list[Request]:
        if self._gate is not None:
            for request in taken:
                self._gate.went(request, QUEUED)
        return Waiting._handed_out(self, taken)

    def _fullness(self) -> str:
        return (
            f"{self.live} requests are waiting, "
            f"and max_queued_requests={self.options.max_queued_requests}"
        )

    def _fits(self, requests: int, size: float) -> bool:
        if self.live + requests <= self.room:
            return True
        if self.closed or self.options.batch_size_fn is None:
            return False
        # An item may be as large as a batch, so it is by their sizes that idle slots take them.
        return self.size + size <= self._takes_at_once()

    def _takes_at_once(self) -> float:
        """Returns how much of the line slots and open batches are about to take."""
        return self.idle_slots * self.options.max_batch_size + self.open_room

    def _park(self, request: Request) -> None:
        request.state = PARKED
        self._parked.add(request)
        self.parked += 1
        if self._gate is not None:
            self._gate.came(request, self.live)

    def _let_in(self) -> bool:
        """Moves parked requests to the line while it has room."""
        woken = False
        while (request := self._parked.first()) is not None and self._fits(1, request.cost):
            request.state = QUEUED
            try:
                woken = self.arrive(request) or woken
            except BaseException:
                request.state = PARKED  # or nobody would find it to tell it
                raise
            self._parked.pop()
            self.parked -= 1
            if self._gate is not None:
                self._gate.let_in(request, self.live)
        return woken

    def _refiled(
        self, request: Request, describe: Callable[[Request], Exception | None]
    ) -> BaseException | None:
        """Puts a request in line under new options; returns why it can't be, if so."""
        try:
            refusal = describe(request)
            if refusal is None and request.state is QUEUED:
                self.arrive(request)
        except BaseException as error:  # or nobody would find those that come after it
            return error
        return refusal

    def _drop(self, request: Request, state: State) -> None:
        was, request.state = request.state, state
        if self._gate is not None:
            self._gate.went(request, was)
        if was is QUEUED:
            self._remove(request)
        else:
            self.parked -= 1
            self._parked.tidy(self.parked)
        if not self.live and not self.parked:
            self._tidy()  # the slot that waits may sleep until somebody comes

    def _tidy(self) -> None:
        super()._tidy()
        if self._gate is not None and not self.parked:
            self._gate.tidy()

    def _check(self) -> None:
        """Asserts the invariants; the tests call it after each step."""
        waiting = list(self._policy.waiting())
        assert self.live == len(waiting)
        assert all(request.state is QUEUED for request in waiting)
        parked = list(self._parked)
        assert self.parked == len(parked)
        assert not parked or not self._fits(1, parked[0].cost)
