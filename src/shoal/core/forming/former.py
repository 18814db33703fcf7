"""The line of a batcher: who is let in, who leaves, and when a free slot takes a batch.

What a batch is made of is a policy's to decide (`policies`), and `Former` asks it. It has a part
for each other question: how many may be in line (`room`), who may not for another reason and who
makes room for whom (`admission`), who can't wait for company (`pressures`), and who has run out of
time (`overdue`). All of it decides, others act: whoever has a clock asks again when `Wait` says so,
and ends what is overdue; whoever has slots tells how many are idle. So the engine and the
simulation run the same line.

`Former.decide` is asked only by a slot that is free, which is the whole of late binding: while
every slot is busy nobody asks, requests pile up, and the next batch is one large one. The rival
rule, to close a batch when its timer ends and to let closed batches queue for a slot, makes many
small batches out of the same load.

Where requests are all alike, nothing here is on the path of a call but `append`, which is the
deque's own.

Invariants:
    ``live`` == number of requests in the policy, all in the state QUEUED.
    ``parked`` == number of requests in ``_parked`` in the state PARKED.
    A request is parked only while there is no room, so parked ones never overtake each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.forming.admission import Admission, AdmissionControl, Parked
from shoal.core.forming.overdue import Overdue
from shoal.core.forming.pressures import PressureTracker
from shoal.core.forming.room import QueueRoom
from shoal.core.latency_model import LatencyModel
from shoal.core.policies.factory import adaptive_of, policy_of, tells_requests_apart
from shoal.core.policies.size_or_wait import SizeOrWait
from shoal.core.policy import Dispatch
from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.core.batch import Batch
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.rule import Rule
    from shoal.core.policy import Wait
    from shoal.core.request import RequestOptions

QUEUED = State.QUEUED
PARKED = State.PARKED


class Former:
    """The line of one batcher.

    Attributes:
        append: Puts a request in line, and says whether a slot must decide now; a part of `arrive`.
        live: How many requests are in line.
        parked: How many requests wait to be let in.
        room: How many requests may be in line, and whether anybody is let in any more.
        free_room: ``room.most`` for requests with nothing but an item; minus infinity where each
            has to be looked at.
        admits_freely: Whether a request may be put in line as soon as there is room.
        takes_anyone: Whether one that has nothing but an item may be, by `append` alone.
        awaits_change: Whether options are to change as soon as no batch gathers, so that each
            request has to be looked at; it counts from the next `reform` on.
        wake_at: The number of requests in line that the waiting slot wants to be told of; 0 for
            none.
        overdue: Which requests have run out of time.
        batches: The batches in the handler and since when, in seconds; whoever runs them sets it.
        model: The run times of the handler.
        adaptive: What chooses sizes and waits; None where they are fixed.
        options: The options in force.
    """

    __slots__ = (
        "_control",
        "_parked",
        "_policy",
        "_pressures",
        "_tells_all",
        "adaptive",
        "admits_freely",
        "append",
        "awaits_change",
        "batches",
        "free_room",
        "live",
        "model",
        "options",
        "overdue",
        "parked",
        "room",
        "takes_anyone",
        "wake_at",
    )

    def __init__(self, options: BatchOptions) -> None:
        self.model = LatencyModel()
        self.room = QueueRoom(options)
        self.overdue = Overdue(lambda request: self._policy.demote(request), options)
        self.batches: Mapping[Batch, float] = {}
        self.live = self.parked = self.wake_at = 0
        self.free_room: float = 0
        self.awaits_change = self._tells_all = False
        self._pressures = PressureTracker(self.model)
        self._parked = Parked()
        self._control: AdmissionControl | None
        self.append: Callable[[Request], object]
        self._take_in(options)

    def admit(self, request: Request) -> Admission:
        """Lets a request in, parks it, or says why not.

        Args:
            request: A new one, in no state yet.
        """
        control, room = self._control, self.room
        if control is not None and not room.closed:
            refusal = control.full_level(request, room.at_once)
            if refusal is None:
                refusal = control.lateness(request, request.arrived_at, self.batches)
            if refusal is not None:
                return Admission(refusal)
        victim = None
        # Who comes does not overtake who waits to be let in.
        if self.parked or not self._fits(1, request.cost):
            if room.closed:
                return Admission("it is closed")
            if self.options.overload == "wait":
                self._park(request)
                return Admission()
            victim = None if control is None or self.parked else control.victim(request)
            if victim is None:
                return Admission(room.fullness(self.live))
        request.state = QUEUED
        ring = self.arrive(request)  # first, since a user's rule may raise
        if control is not None:
            control.note_added(request, self.live)
        if victim is not None:
            self._drop(victim, State.FAILED)
        return Admission(victim=victim, ring=ring)

    def refusal_of(self, requests: Sequence[Request]) -> str | None:
        """Says why requests can't be let in together; None if that is not certain.

        Nobody is shed for many requests at once: one of them might be refused in the end.
        """
        size = sum([request.cost for request in requests])
        if self.options.overload == "wait" or self._fits(len(requests), size):
            return None
        return self.room.fullness(self.live)

    def arrive(self, request: Request) -> bool:
        """Puts a request in line that has been let in.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        live = self.live + 1
        if self.append(request):
            self.wake_at = live
        asked = request.options
        if asked is not None and asked.due is not None:
            pressures = self._pressures
            if pressures.may_wait and pressures.note_arrival(request, asked.due, live):
                self.wake_at = live
        self.live = live
        return live == self.wake_at

    def arrive_all(self, requests: list[Request]) -> bool:
        """Puts many requests in line, as `arrive` does, where all requests are alike.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        before = self.live
        must_decide = self._policy.extend(requests)
        self.live += len(requests)
        return must_decide or self._tells_all or before < self.wake_at <= self.live

    def leave(self, request: Request, state: State = State.CANCELLED) -> bool:
        """Lets a request go that is queued or parked: its caller has left, or it has failed.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        self._drop(request, state)
        return (self.parked > 0 and self._admit_parked()) or self._tells_all

    def reform(self, *, idle_slots: float | None = None, open_room: float = 0) -> bool:
        """Takes in another number of idle slots, or a place that is free in line.

        Args:
            idle_slots: How many slots are idle, infinity where their number has no bound; None for
                as many as before.
            open_room: How much more the batches take that are open.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        self.room.measure(idle_slots, open_room)
        is_free = self.takes_anyone and not self.awaits_change
        self.free_room = self.room.most if is_free else -math.inf
        return self.parked > 0 and self._admit_parked()

    def tell_all(self) -> None:
        """Rings at every change from now on, for batches that are open take whoever comes."""
        self._tells_all = True
        self.append = self._append_and_tell

    def decide(self, now: float) -> Dispatch | Wait:
        """Says what a free slot should do.

        Args:
            now: The time on the event loop's clock, in seconds.

        Returns:
            What to take, or when to ask again.
        """
        pressures = self._pressures
        if not self.live:
            self._tidy()
        decision = self._policy.decide(now, pressures.pressure(now) if self.live else None)
        if isinstance(decision, Dispatch):
            pressures.asleep_until = -math.inf
            return decision
        if pressures.unseen:
            # They may change the decision, for it matters now when they must leave.
            pressures.see(self.live)
            return self.decide(now)
        return pressures.sleep(decision, self.live)

    def take(self, dispatch: Dispatch) -> list[Request]:
        """Hands out the batch that `decide` has just decided on.

        Parked requests follow when the taker has said, by `reform`, that its slot is not idle now.

        Returns:
            The requests, all in the state QUEUED; the caller moves them on.
        """
        return self._handed_out(self._policy.take(dispatch))

    def take_within(self, room: float) -> list[Request]:
        """Hands out those that may join a batch which is open, in order, up to some room in it."""
        taken = self._handed_out(self._policy.take_within(room))
        if not self.live:
            self._tidy()  # nobody asks `decide` where batches are open
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """Undoes the last `take`; those of its requests that are not QUEUED now have left."""
        waiting = [request for request in requests if request.state is QUEUED]
        self._policy.put_back(waiting)
        self._pressures.put_back()
        self.live += len(waiting)
        if self._control is not None:
            for request in requests:
                if request.state is QUEUED:
                    self._control.note_returned(request)

    def flush(self) -> None:
        """Makes what is in line now leave with the next cuts, full or not."""
        self._pressures.flush(self._policy.waiting())

    @property
    def took_flushed(self) -> bool:
        """Whether a flush covered any of those who were handed out last."""
        return self._pressures.handed_out_flushed

    def drain(self) -> None:
        """Lets nobody wait for company any more."""
        self._pressures.draining = True

    @property
    def draining(self) -> bool:
        """Whether nobody waits for company any more."""
        return self._pressures.draining

    @property
    def is_gathering(self) -> bool:
        """Whether a batch gathers: a free slot has looked at the line, and waits with who is there.

        While every slot is busy none does, since batches are made for slots that are free.
        """
        return self.live > 0 and self._pressures.asleep_until != -math.inf

    @property
    def scheduling_capacity(self) -> float:
        """How much more idle slots and open batches would take at once, beyond what is in line."""
        return self.room.spare(self._policy.size_of_all())

    @property
    def size(self) -> float:
        """What the costs of those that wait sum up to."""
        return self._policy.size_of_all()

    def size_beside(self, asked: RequestOptions) -> float:
        """Returns what the costs of those that wait in one bucket sum up to.

        Args:
            asked: The record of a request of the bucket.
        """
        return self._policy.size_beside(asked)

    def in_line(self) -> list[Request]:
        """Returns all that wait, parked ones first: so none of them is let in as all leave."""
        return [*self._parked, *self._policy.waiting()]

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
        waiting = [*self._policy.by_arrival(), *self._parked]
        self._take_in(options)
        failed: list[tuple[Request, BaseException]] = []
        for request in waiting:
            self.live -= request.state is QUEUED  # it is counted anew where it stays
            error = self._refiled(request, describe)
            if error is not None:
                failed.append((request, error))
                self.parked -= request.state is PARKED
                request.state = State.FAILED
                self._pressures.left(request)
            elif self._control is not None:
                self._control.note_added(request, self.live)
        self.reform()
        return failed

    def close(self) -> None:
        """Lets nobody in any more, and everybody who waits for room at once."""
        room = self.room
        room.closed = True
        self.drain()
        room.most = math.inf
        self._admit_parked()
        room.most = self.free_room = 0

    def clear(self) -> Iterator[Request]:
        """Empties the line at its end, and yields all that waited in it, parked ones last."""
        waiting = [*self._policy.waiting(), *self._parked]
        self._parked.clear()
        self.live = self.parked = 0
        self._control = None
        self._file_by(SizeOrWait(self.options))  # a user's own might raise when it is made again
        return iter(waiting)

    def _take_in(self, options: BatchOptions) -> None:
        adaptive = adaptive_of(options, self.model)
        self._file_by(policy_of(options, self.model, adaptive))
        self.adaptive = adaptive
        self.options = options
        self.room.change(options)
        self.overdue.change(options)
        self._pressures.change(options)
        self._control = AdmissionControl.for_options(options, self.model)
        self.admits_freely = self._control is None
        self.takes_anyone = self.admits_freely and not tells_requests_apart(options)

    def _file_by(self, policy: Rule) -> None:
        self._policy = policy
        self.append = policy.append
        if self._tells_all:
            self.tell_all()

    def _append_and_tell(self, request: Request) -> bool:
        self._policy.add(request)
        self.wake_at = self.live + 1
        return True

    def _handed_out(self, taken: list[Request]) -> list[Request]:
        if self._control is not None:
            for request in taken:
                self._control.note_left(request, QUEUED)
        self.live -= len(taken)
        pressures = self._pressures
        if pressures.covered or pressures.handed_out_flushed:
            pressures.taken(taken)
        return taken

    def _fits(self, requests: int, size: float) -> bool:
        if self.live + requests <= self.room.most:
            return True
        return self.room.takes_at_once(self._policy.size_of_all() + size)

    def _park(self, request: Request) -> None:
        request.state = PARKED
        self._parked.add(request)
        self.parked += 1
        if self._control is not None:
            self._control.note_added(request, self.live)

    def _admit_parked(self) -> bool:
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
            if self._control is not None:
                self._control.note_admitted(request, self.live)
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
        if self._control is not None:
            self._control.note_left(request, was)
        if was is QUEUED:
            self.live -= 1
            self._pressures.left(request)
            self._policy.remove(request)
        else:
            self.parked -= 1
            self._parked.tidy(self.parked)
        if not self.live and not self.parked:
            self._tidy()  # the slot that waits may sleep until somebody comes

    def _tidy(self) -> None:
        """Forgets what has ended, when nobody is in line any more."""
        self._pressures.forget_times()
        if self._control is not None and not self.parked:
            self._control.tidy()
