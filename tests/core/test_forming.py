"""The line and the rule of size or wait, against a plain model, with no event loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal import BatchOptions
from shoal.core.batch import CutReason
from shoal.core.forming import Cut, Former, Wait
from shoal.core.request import Request, State

WAITS = st.sampled_from([0.0, 1.0, 2.5, None])
RARELY = st.sampled_from([False] * 9 + [True])
BOUNDS = st.sampled_from([None, 0, 1, 3])


def request(arrived_at: float = 0.0, state: State = State.QUEUED) -> Request:
    made = Request()
    made.item = made.arrived_at = arrived_at
    made.state = state
    made.options = None
    return made


class LineMachine(RuleBasedStateMachine):
    """A line, the lists that it should equal, and a slot that waits as the engine's do."""

    def __init__(self) -> None:
        super().__init__()
        self.options = BatchOptions(max_batch_size=2, batch_wait_timeout_s=1.0)
        self.former = Former(self.options)
        self.now = 100.0
        self.slots = self.idle = 1
        self.queued: list[Request] = []
        self.parked: list[Request] = []
        self.flushed: list[Request] = []
        self.closed = self.draining = False
        self.waiting: Wait | None = None
        self.rung = False
        self.former.reform(idle_slots=1)

    # The model

    @property
    def room(self) -> float:
        if self.closed:
            return 0
        bound = self.options.max_queued_requests
        return math.inf if bound is None else bound + self.idle * self.options.max_batch_size

    def admit(self) -> None:
        while self.parked and len(self.queued) < self.room:
            self.queued.append(self.parked.pop(0))

    def decision(self) -> Cut | Wait:
        size, wait_s = self.options.max_batch_size, self.options.batch_wait_timeout_s
        if not self.queued:
            return Wait(None, 1)
        if len(self.queued) >= size:
            return Cut(size, CutReason.FULL)
        if any(one in self.flushed for one in self.queued):
            return Cut(len(self.queued), CutReason.FLUSH)
        if self.draining:
            return Cut(len(self.queued), CutReason.DRAIN)
        if wait_s is None:
            return Wait(None, size)
        due = self.queued[0].arrived_at + wait_s
        if due <= self.now:
            return Cut(len(self.queued), CutReason.TIMER)
        return Wait(due, size)

    # What can happen

    @rule(count=st.integers(1, 5))
    def calls_come(self, count: int) -> None:
        for _ in range(count):
            one = request(self.now)
            if self.former.live < self.former.room:
                rings = self.former.arrive(one)
                self.queued.append(one)
                assert rings == (len(self.queued) == self.former.wake_at)
                self.rung = rings or self.rung
            elif not self.closed:
                one.state = State.PARKED
                self.former.park(one)
                self.parked.append(one)

    @rule(which=st.integers(0, 50))
    def a_caller_leaves(self, which: int) -> None:
        waiting = self.queued + self.parked
        if not waiting:
            return
        one = waiting[which % len(waiting)]
        self.rung = self.former.leave(one) or self.rung
        assert one.state is State.CANCELLED
        (self.queued if one in self.queued else self.parked).remove(one)
        self.admit()

    @rule(by=st.sampled_from([0.5, 1.0, 2.5]))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule()
    def flush(self) -> None:
        self.former.flush()
        self.flushed = list(self.queued)
        self.rung = True

    @rule(really=RARELY)
    def drain(self, really: bool) -> None:
        if really:
            self.former.draining = self.draining = True
            self.rung = True

    @rule(
        changes=st.fixed_dictionaries(
            {},
            optional={
                "max_batch_size": st.integers(1, 4),
                "batch_wait_timeout_s": WAITS,
                "max_queued_requests": BOUNDS,
            },
        ),
    )
    def configure(self, changes: dict[str, Any]) -> None:
        self.options = self.options.changed(changes)
        self.former.reform(self.options)
        self.admit()
        self.rung = True

    @rule(more=st.booleans())
    def slots_change(self, more: bool) -> None:
        if more or self.idle:
            self.slots += 1 if more else -1
            self.idle += 1 if more else -1
            self.rung = self.former.reform(idle_slots=self.idle) or self.rung
            self.admit()

    @precondition(lambda self: self.idle < self.slots)
    @rule()
    def a_batch_ends(self) -> None:
        self.idle += 1
        self.rung = self.former.reform(idle_slots=self.idle) or self.rung
        self.admit()

    @rule(really=RARELY)
    def close(self, really: bool) -> None:
        if not really:
            return
        self.former.close()
        self.closed = self.draining = True
        self.queued += self.parked
        self.parked = []
        self.rung = True

    @precondition(lambda self: self.idle > 0)
    @rule()
    def a_slot_decides(self) -> None:
        self.former.wake_at = 0
        decision = self.former.decide(self.now)
        assert decision == self.decision()
        if isinstance(decision, Wait):
            self.waiting, self.rung = decision, False
            self.former.wake_at = decision.wake_at
            return
        self.waiting = None
        self.idle -= 1
        self.former.reform(idle_slots=self.idle)
        taken = self.former.take(decision.size)
        assert taken == self.queued[: decision.size]
        for one in taken:
            assert one.state is State.QUEUED
            one.state = State.RUNNING
        del self.queued[: decision.size]
        self.former.reform()
        self.admit()

    @rule(really=RARELY)
    def all_are_failed(self, really: bool) -> None:
        if not really:
            return
        assert list(self.former.clear()) == self.queued + self.parked
        self.queued, self.parked, self.flushed = [], [], []

    # What must hold

    @invariant()
    def it_is_as_the_model(self) -> None:
        self.former._check()
        assert (self.former.live, self.former.parked) == (len(self.queued), len(self.parked))
        assert self.former.room == self.room
        assert all(one.state is State.QUEUED for one in self.queued)
        assert all(one.state is State.PARKED for one in self.parked)

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        if self.waiting is not None and not self.rung:
            assert len(self.queued) < self.waiting.wake_at


LineMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestLine = LineMachine.TestCase


def line(*arrivals: float, **options: Any) -> tuple[Former, list[Request]]:
    former = Former(BatchOptions.of(options))
    former.reform(idle_slots=1)
    requests = [request(at) for at in arrivals]
    for one in requests:
        former.arrive(one)
    return former, requests


def test_an_empty_line_waits_for_one() -> None:
    assert line()[0].decide(0.0) == Wait(None, 1)


def test_a_full_batch_goes_at_once() -> None:
    assert line(0, 0, 0, max_batch_size=2, batch_wait_timeout_s=9)[0].decide(0) == Cut(
        2, CutReason.FULL
    )


def test_the_wait_is_counted_from_the_oldest_arrival() -> None:
    former, (oldest, _) = line(1, 3, batch_wait_timeout_s=5, max_batch_size=4)
    assert former.decide(5.999) == Wait(6, 4)
    assert former.decide(6) == Cut(2, CutReason.TIMER)
    former.leave(oldest)
    assert former.decide(6) == Wait(8, 4)


def test_without_a_window_a_batch_waits_until_it_is_full() -> None:
    former, _ = line(0, batch_wait_timeout_s=None, max_batch_size=2)
    assert former.decide(1e9) == Wait(None, 2)
    former.arrive(request())
    assert former.decide(0) == Cut(2, CutReason.FULL)


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_a_flush_is_for_what_is_in_line_then(leaving: int) -> None:
    former, requests = line(0, 0, 0, batch_wait_timeout_s=None)
    former.flush()
    for one in requests[:leaving]:
        former.leave(one)
    assert former.decide(0) == Cut(3 - leaving, CutReason.FLUSH)
    assert former.take(3 - leaving) == requests[leaving:]
    former.arrive(request())
    assert former.decide(0) == Wait(None, 10)


def test_a_flush_does_not_outlive_those_who_left() -> None:
    former, requests = line(0, 0, 0, batch_wait_timeout_s=None)
    former.flush()
    former.arrive(request())
    for one in requests:
        former.leave(one)
    assert former.decide(0) == Wait(None, 10)


def test_a_flush_of_an_empty_line_does_nothing() -> None:
    former, _ = line(batch_wait_timeout_s=None)
    former.flush()
    former.arrive(request())
    assert former.decide(0) == Wait(None, 10)


def test_what_idle_slots_can_take_does_not_count_as_waiting() -> None:
    former, _ = line(max_batch_size=4, max_queued_requests=3)
    assert former.room == 7
    former.reform(idle_slots=0)
    assert former.room == 3


def test_a_bound_of_nothing_admits_what_can_start() -> None:
    former, _ = line(max_batch_size=4, max_queued_requests=0)
    assert former.room == 4
    former.reform(idle_slots=0)
    assert former.room == 0


def test_the_line_does_not_grow_by_callers_that_come_and_go() -> None:
    former, _ = line(0, batch_wait_timeout_s=None)
    longest = 0
    for _ in range(10_000):
        one = request()
        former.arrive(one)
        former.leave(one)
        longest = max(longest, len(former.queue))
    assert longest < 100
    assert former.live == 1


def test_those_who_wait_for_room_and_go_do_not_grow_it_either() -> None:
    former, _ = line(0, max_queued_requests=0, max_batch_size=1)
    longest = 0
    for _ in range(10_000):
        one = request(state=State.PARKED)
        former.park(one)
        former.leave(one)
        longest = max(longest, len(former._parked))
    assert longest < 100
    assert former.parked == 0
