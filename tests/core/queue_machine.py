"""Compares the real queue with its model, step by step, with a slot that waits as the engine's."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from core.former_scenes import check
from core.queue_model import QueueModel, cost_of
from shoal import BatchOptions
from shoal.core.amount import Amount
from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions, RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.policies.buckets import Buckets
from shoal.core.policies.ranked import Ranked
from shoal.core.policy import Dispatch, Wait
from shoal.core.request import Request, State

LOOK = st.sampled_from(["not", "once", "twice"])
RARELY_SOME = st.sampled_from([frozenset[int]()] * 5 + [frozenset({0}), frozenset({1, 2})])
CALL = st.fixed_dictionaries(
    {
        "cost": st.sampled_from([1, 1, 2, 3, 0.5, 0]),
        "key": st.sampled_from("aaab"),
        "level": st.integers(1, 3),
        "timeout_s": st.sampled_from([None, None, None, 1.0, 2.0, 8.0]),
        "queue_timeout_s": st.sampled_from([None] * 5 + [0.5, 2.0]),
    }
)
LEFTOVERS = 64


def item_cost(item: tuple[float, str]) -> float:
    return item[0]


def item_key(item: tuple[float, str]) -> str:
    return item[1]


class QueueMachine(RuleBasedStateMachine):
    """A queue under some options, its model, and a slot. Subclasses set the options."""

    some_options: st.SearchStrategy[dict[str, Any]]
    measured: st.SearchStrategy[dict[int, float]] = st.just({})
    taken = 0  # by all runs together, so that a machine which does nothing is found

    @initialize(data=st.data(), slots=st.sampled_from([1, 1, 2, 0]))
    def begin(self, data: Any, slots: int) -> None:
        self.options = BatchOptions(**data.draw(self.some_options))
        self.former = Former(self.options)
        for size, seconds in data.draw(self.measured).items():
            self.former.model.observe(size, seconds)
        self.options_factory = RequestOptionsFactory("a batcher", self.options)
        self.model = QueueModel(self.options, self.former)
        self.slots = slots
        self.waiting: Wait | None = None
        self.rung = self.has_happened = False
        # Whether a better batch may have become possible without the slot being woken.
        self.may_be_better = False
        self._report_idle(slots)

    def _report_idle(self, idle: int) -> None:
        self.model.idle = idle
        rings = self.former.reform(idle_slots=idle)
        self.model.admit_parked()
        self._happens(rings)

    def _happens(self, rings: bool = True) -> None:
        self.rung = self.rung or rings
        self.has_happened = True

    # What callers do

    @rule(calls=st.lists(CALL, min_size=1, max_size=4), look=LOOK)
    def calls_come(self, calls: list[dict[str, Any]], look: str) -> None:
        for call in calls:
            self._call(**call)
        self._look(look)

    def _call(self, cost: float, key: str, level: int, **limits: Any) -> None:
        if self.options.preferred_batch_sizes is not None:
            cost = cost or 1  # which batch a request without a cost joins is undefined
        if self.model.may_delay():
            self.model.now += 1 / 1024  # the order of delayed requests of one moment is undefined
        one = Request()
        one.item, one.arrived_at = (cost, key), self.model.now
        if self.former.model.samples():
            limits["timeout_s"] = None  # what is known of the run time is not modelled
        levels = self.options.priority_levels
        call_options = CallOptions(**limits, priority=None if levels == 1 else min(level, levels))
        one.options = None
        if self.options.batch_size_fn is not None and cost > self.options.max_batch_size:
            return  # it is too large
        if self.options_factory.of_each or call_options != NO_CALL_OPTIONS:
            one.options = self.options_factory.of(one.item, call_options, one.arrived_at)
        admission = self.former.admit(one)
        what, victim = self.model.admit(one)
        assert (admission.refusal is None) == (what != "refused")
        assert admission.victim is victim
        if victim is not None:
            assert victim.state is State.FAILED
            self.former.overdue.forget(victim)
        self._happens(admission.ring)
        if what != "refused":
            assert one.state is (State.QUEUED if what == "queued" else State.PARKED)
            self.former.overdue.watch(one)
            self.model.watch(one)

    @rule(which=st.integers(0, 50))
    def a_caller_leaves(self, which: int) -> None:
        waiting = self.model.queued + self.model.parked
        if waiting:
            self._end(waiting[which % len(waiting)], State.CANCELLED)

    def _end(self, request: Request, state: State) -> None:
        self._happens(self.former.leave(request, state))
        assert request.state is state
        self.model.leave(request, "left")
        self.former.overdue.forget(request)
        self.may_be_better = True

    @rule(by=st.sampled_from([0.25, 0.5, 1.0, 2.0]), look=LOOK)
    def time_passes(self, by: float, look: str) -> None:
        self.model.now += by
        self._look(look)

    @precondition(lambda self: self.waiting is not None and self.waiting.until is not None)
    @rule()
    def the_time_comes_that_the_slot_waits_for(self) -> None:
        assert self.waiting is not None
        assert self.waiting.until is not None
        self.model.now = max(self.model.now, self.waiting.until)
        self._look("once")

    @rule()
    def time_is_up(self) -> None:
        ending = self.model.time_is_up()
        ended: list[Request] = []
        for request, _ in self.former.overdue.pop(self.model.now):
            ended.append(request)
            self._end(request, State.FAILED)
        assert ended == ending
        self.may_be_better = True
        self._happens(False)

    # What the batcher does

    @rule()
    def flush(self) -> None:
        self.former.flush()
        self.model.flushed = list(self.model.queued)
        self._happens()
        self._look("once")

    @rule(
        data=st.data(),
        what=st.sampled_from(["configure", "more", "fewer"] * 4 + ["drain", "close"]),
    )
    def the_batcher_changes(self, data: Any, what: str) -> None:
        if what == "configure":
            self._configure(data)
        elif what == "drain":
            self._drain()
        elif what == "close":
            self._close()
        elif what == "more" or self.model.idle:
            self.slots += 1 if what == "more" else -1
            self._report_idle(self.model.idle + (1 if what == "more" else -1))

    def _drain(self) -> None:
        self.former.pressures.draining = True
        self.model.draining = True
        self._happens()

    def _close(self) -> None:
        self.former.close()
        self.model.draining = True
        for request in self.model.parked:
            self.model._enqueue(request)
        self.model.parked = []
        self.model.closed = True
        self._happens()

    def _configure(self, data: Any) -> None:
        self.options = BatchOptions(**data.draw(self.some_options))
        self.options_factory = RequestOptionsFactory("a batcher", self.options)
        failed = self.former.change(self.options, self.options_factory.renew)
        waiting = [*self.model.queued, *self.model.parked]
        most = self.options.max_batch_size
        costs = self.options.batch_size_fn is not None
        too_large = [one for one in waiting if costs and item_cost(one.item) > most]
        assert {request for request, _ in failed} == set(too_large)
        for request in too_large:
            assert request.state is State.FAILED
            self.former.overdue.forget(request)
            self.model.ended[request] = "failed"
            (self.model.queued if request in self.model.queued else self.model.parked).remove(
                request
            )
        self.model.change(self.options)
        self.model.admit_parked()
        self._happens()

    @precondition(lambda self: self.model.idle < self.slots)
    @rule()
    def a_batch_ends(self) -> None:
        self._report_idle(self.model.idle + 1)

    @precondition(lambda self: self.model.idle > 0)
    @rule(again=st.booleans(), departed=RARELY_SOME, is_quick=st.booleans())
    def a_slot_decides(self, again: bool, departed: frozenset[int], is_quick: bool) -> None:
        self._decide(again, departed, is_quick)

    def _look(self, how: str) -> None:
        """Lets a slot decide, and run quick batches as long as there are any."""
        while how != "not" and self.model.idle and self.model.queued:
            self._decide(how == "twice", frozenset(), is_quick=True)
            if how == "once" or self.waiting is not None:
                return

    def _decide(self, again: bool, departed: frozenset[int], is_quick: bool) -> None:
        self.time_is_up_for_those_who_are_due()
        asleep, now = self.waiting, self.model.now
        is_time = asleep is not None and asleep.until is not None and asleep.until <= now
        decision = self.former.decide(now)
        assert not again or self.former.decide(now) == decision
        if isinstance(decision, Wait):
            assert not (is_time and not self.has_happened), (
                "it is Dispatch at the time that it named"
            )
            self._sleep(decision)
            return
        self.waiting = None
        taken = self._take(decision)
        gone = [one for place, one in enumerate(taken) if place in departed]
        if gone:
            for one in gone:
                one.state = State.CANCELLED
                self.model.ended[one] = "left"
                self.former.overdue.forget(one)
            self.former.put_back(taken)
            self.model.put_back([one for one in taken if one not in gone])
            self._report_idle(self.model.idle)
        else:
            self._run(taken)
            if not is_quick:
                self._report_idle(self.model.idle - 1)
            type(self).taken += len(taken)
            self._report_idle(self.model.idle)

    def time_is_up_for_those_who_are_due(self) -> None:
        if self.former.overdue.timers.next_at() <= self.model.now:
            self.time_is_up()

    def _sleep(self, decision: Wait) -> None:
        now = self.model.now
        assert self.model.batches() == []
        until = math.inf if decision.until is None else decision.until
        assert now < until <= self.model.until()
        self.waiting, self.rung, self.has_happened = decision, False, False
        self.may_be_better = False

    def _take(self, decision: Dispatch) -> list[Request]:
        possible = self.model.batches()
        taken = self.former.take(decision)
        assert 1 <= len(taken) <= decision.size
        assert (taken, decision.reason) in possible
        assert all(one.state is State.QUEUED for one in taken)
        assert len({self.model.key(one) for one in taken}) == 1
        assert len(taken) == 1 or cost_of(taken) <= self.options.max_batch_size
        self.model.hand_out(taken)
        return taken

    def _run(self, taken: list[Request]) -> None:
        for one in taken:
            one.state = State.RUNNING
            self.model.ended[one] = "taken"
            self.former.overdue.forget(one)

    @precondition(lambda self: not isinstance(self.former._policy, Buckets))
    @rule(most=st.sampled_from([0, 1, 3, math.inf]), most_cost=st.sampled_from([0, 1, 2.5, 4]))
    def some_join_an_open_batch(self, most: float, most_cost: float) -> None:
        room = Amount(most, most_cost)
        joined = self.former.take_within(room)
        wanted: list[Request] = []
        for one in self.model.in_order():
            if len(wanted) >= most or cost_of([*wanted, one]) > most_cost:
                break
            wanted.append(one)
        assert joined == wanted
        self.model.hand_out(joined)
        self._run(joined)
        self._report_idle(self.model.idle)
        self.may_be_better = True

    # What must hold

    @invariant()
    def it_is_as_the_model(self) -> None:
        former, model = self.former, self.model
        check(former)
        assert (former.live, former.parked) == (len(model.queued), len(model.parked))
        assert former.most == model.room()
        assert list(former._policy.waiting()) == model.in_order()
        assert all(one.state is State.QUEUED for one in model.queued)
        assert all(one.state is State.PARKED for one in model.parked)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        if self.waiting is None or self.rung:
            return
        prefers = self.options.preferred_batch_sizes is not None
        if prefers and self.options.batch_size_fn is not None and self.may_be_better:
            return  # another order may make a preferred sum, which does not wake the slot
        until = math.inf if self.waiting.until is None else self.waiting.until
        if until > self.model.now:
            assert self.model.batches() == []
            assert until <= self.model.until()

    def teardown(self) -> None:
        if not hasattr(self, "former"):
            return
        if len(self.model.ended) % 2:
            assert list(self.former.clear()) == self.model.in_order() + self.model.parked
            return
        self._drain()
        self._report_idle(self.model.idle + 1)
        while self.model.queued or self.model.parked:
            decision = self.former.decide(self.model.now)
            assert isinstance(decision, Dispatch)
            self._run(self._take(decision))
            self._report_idle(self.model.idle)
            self.it_is_as_the_model()
        assert isinstance(self.former.decide(self.model.now), Wait)
        self._nothing_is_kept()

    def _nothing_is_kept(self) -> None:
        policy = self.former._policy
        if isinstance(policy, Buckets):
            assert not policy._buckets
            assert len(policy._agenda) <= LEFTOVERS
            assert len(policy._ready) <= LEFTOVERS
        else:
            queues = (
                [policy.queue, policy._by_due] if isinstance(policy, Ranked) else [policy._queue]
            )
            assert [len(queue) for queue in queues] == [0] * len(queues)
        if self.former._control is not None:
            assert self.former.cost == 0
            assert not self.former._control._by_level
        assert self.former.overdue.timers.next_at() == math.inf


QUICK = settings(
    max_examples=10,
    stateful_step_count=35,
    phases=(Phase.generate,),  # to shrink takes longer than a test may
)
