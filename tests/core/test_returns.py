"""Regathering: a free slot waits for the callers of the last batch, if they come back soon."""

import math
from typing import Any

import pytest

from core.former_scenes import admit, new
from shoal import BatchOptions, LatencyTarget
from shoal.core.forming.former import Former
from shoal.core.policy import Dispatch, Wait, WholeQueuePolicy
from shoal.core.request import Batch, DispatchReason, State
from shoal.core.simulation import simulate
from shoal.core.simulation_results import ClosedLoop, Linear


class Loop:
    """A queue whose callers all come back, a millisecond after each batch of a second."""

    def __init__(self, callers: int = 4, **options: Any) -> None:
        self.former = Former(BatchOptions.of({"max_batch_size": 8} | options))
        self.batches = self.former.batches
        self.now = 0.0
        self.in_order = True  # whether the requests of a batch are in order of arrival
        self.former.idle_slots = 1
        self.numbers = 0
        self.come(callers)

    def come(self, callers: int, **asked: Any) -> None:
        admit(self.former, *[new(self.now, **asked) for _ in range(callers)])

    def decide(self) -> Dispatch | Wait:
        return self.former.decide(self.now)

    def wait(self) -> Any:
        """Decides, and returns the wait that was decided on."""
        decision = self.decide()
        assert isinstance(decision, Wait)
        return decision

    def run(self, decision: Dispatch | Wait, *, lasts_s: float = 1.0, late: int = 0) -> int:
        """Runs the batch that was decided on, while some call; returns how many callers it had."""
        assert isinstance(decision, Dispatch)
        requests = self.former.take(decision)
        self.numbers += 1
        batch = Batch(self.numbers, decision.reason, requests)
        for request in requests:
            request.state = State.RUNNING
        self.batches[batch] = self.now
        self.former.idle_slots = 0
        self.now += lasts_s / 2
        self.come(late)
        self.now += lasts_s / 2
        self.end(batch, lasts_s)
        return len(requests)

    def end(self, batch: Batch, run_s: float) -> None:
        del self.batches[batch]
        for request in batch.members:
            request.state = State.FINISHED
            self.former.overdue.forget(request.options)
        self.former.model.observe(batch.load, run_s)
        running = len(self.batches)
        members = batch.members if self.in_order else batch.members[::-1]
        self.former.regathering.ended(members, run_s, self.now, self.former.calls, running)
        self.former.idle_slots = 1

    def learn(
        self, rounds: int = 16, *, lasts_s: float = 1.0, back_s: float = 0.001, away: int = 0
    ) -> int:
        """Has the callers come back some times; returns how many the last batch had.

        Args:
            rounds: How many times.
            lasts_s: How long a batch runs.
            back_s: How long it takes until all are back.
            away: How many stay away; others call while the next batch runs.
        """
        callers = 0
        for nth in range(rounds):
            lasts = lasts_s * (1 + nth % 2 * 0.01)
            callers = self.run(self.settled(), lasts_s=lasts, late=away)
            for _ in range(callers - away):
                self.now += back_s / callers
                self.come(1)
        callers = self.run(self.settled(), lasts_s=lasts_s, late=away)
        self.now += 0.0001
        return callers

    def settled(self) -> Dispatch | Wait:
        """Decides, at the end of the wait if there is one."""
        decision = self.decide()
        if isinstance(decision, Wait) and decision.until is not None:
            self.now = decision.until
            decision = self.decide()
        return decision


REGATHER = DispatchReason.REGATHER
MODEL = Linear(0.002, 0.00005, jitter=0.03, seed=1)
COSTLY = Linear(0.01, 0.001, jitter=0.03, seed=1)


def mean_s(simulation: Any) -> float:
    return sum(simulation.latency_s) / len(simulation.latency_s)


# Whole loads


@pytest.mark.parametrize("seed", range(5))
def test_callers_who_take_longer_than_a_batch_costs_are_not_waited_for(seed):
    loop = ClosedLoop(64, 0.004, 1, jitter=0.1, seed=seed)
    waits = simulate(loop, BatchOptions(max_batch_size=64), MODEL)
    never = simulate(loop, BatchOptions(max_batch_size=64, regather=False), MODEL)
    assert waits.reasons[REGATHER] <= 0.02 * len(waits.batches)
    assert mean_s(waits) <= 1.02 * mean_s(never)


def test_two_slots_share_the_callers():
    options = BatchOptions(max_batch_size=64, max_concurrent_batches=2)
    loop = ClosedLoop(64, 0.0005, 1, jitter=0.3, seed=2)
    together = simulate(loop, options, COSTLY)
    apart = simulate(loop, options.changed({"regather": False}), COSTLY)
    assert together.mean_batch > 1.5 * apart.mean_batch
    assert mean_s(together) < 1.01 * mean_s(apart)


# One decision


def waiting(callers: int) -> Loop:
    """Has learned, and waits for the others after some are back."""
    loop = learned()
    loop.come(callers)
    loop.wait()
    return loop


def learned(callers: int = 4, **options: Any) -> Loop:
    loop = Loop(callers, **options)
    loop.learn()
    return loop


def test_a_batch_that_is_due_waits_until_all_are_back():
    loop = Loop()
    assert loop.learn() == 4
    loop.come(1)
    wait = loop.wait()
    assert wait.wake_at == 4
    assert wait.until is not None
    ended_at = loop.now - 0.0001
    assert wait.until - ended_at == pytest.approx(1.25 * 0.001, rel=0.01)
    loop.come(3)
    assert loop.decide() == Dispatch(4, REGATHER)


def test_it_waits_no_longer_than_they_take():
    loop = learned()
    loop.come(2)
    wait = loop.wait()
    loop.now = math.nextafter(wait.until, 0)
    loop.wait()
    loop.now = wait.until
    assert loop.decide() == Dispatch(2, REGATHER)


@pytest.mark.parametrize(
    ("options", "costs"),
    [({"max_batch_size": 4}, [1, 1, 1]), ({"batch_size_fn": lambda item: 1.0}, [7])],
)
def test_a_batch_that_is_full_by_its_number_or_its_costs_does_not_wait(options, costs):
    loop = learned(**options)
    loop.come(1)
    loop.wait()
    assert [loop.former.admit(new(loop.now, cost=cost)).ring for cost in costs][-1]
    assert loop.decide() == Dispatch(1 + len(costs), DispatchReason.FULL)


@pytest.mark.parametrize("priority_levels", [1, 2])
def test_one_more_does_not_wake_the_slot(priority_levels):
    loop = learned(priority_levels=priority_levels)
    loop.come(1)
    loop.wait()
    second, third, fourth = [new(loop.now) for _ in range(3)]
    assert [loop.former.admit(one).ring for one in (second, third, fourth)] == [False, False, True]


def test_a_flush_and_a_drain_do_not_wait():
    for act, reason in (
        (Former.flush, DispatchReason.FLUSH),
        (Former.drain, DispatchReason.DRAIN),
    ):
        loop = learned()
        loop.come(1)
        loop.wait()
        act(loop.former)
        assert loop.decide() == Dispatch(1, reason)


def test_a_caller_who_left_is_not_expected():
    loop = learned()
    loop.come(4)
    decision = loop.decide()
    assert isinstance(decision, Dispatch)
    requests = loop.former.take(decision)
    batch = Batch(99, decision.reason, requests)
    loop.batches[batch] = loop.now
    requests[0].state = requests[1].state = State.CANCELLED
    for request in requests[2:]:
        request.state = State.RUNNING
    loop.now += 1
    del loop.batches[batch]
    loop.former.regathering.ended(batch.members, 1, loop.now, loop.former.calls, 0)
    loop.come(1)
    wait = loop.wait()
    assert wait.wake_at == 2


def test_nobody_who_has_left_keeps_the_slot_waiting():
    loop = learned()
    requests = [new(loop.now) for _ in range(2)]
    admit(loop.former, *requests)
    loop.wait()
    for request in requests:
        loop.former.leave(request)
    assert loop.decide() == Wait(None, 1)
    loop.now += 1
    loop.come(1)
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)


def test_an_urgent_request_does_not_wait():
    loop = learned()
    loop.come(1, deadline=loop.now + 1.06)  # a run takes 1.01 s, and it might be slower
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)


def test_an_urgent_request_ends_the_wait_of_others():
    loop = learned()
    loop.come(1, deadline=loop.now + 60)
    loop.wait()
    calm, urgent = new(loop.now, deadline=loop.now + 60), new(loop.now, deadline=loop.now + 1.06)
    assert not loop.former.admit(calm).ring
    loop.former.overdue.watch(calm)
    assert loop.former.admit(urgent).ring
    loop.former.overdue.watch(urgent)
    assert loop.decide() == Dispatch(3, REGATHER)


class Costly(Loop):
    def __init__(self, cost: float, **options: Any) -> None:
        self.cost = cost
        super().__init__(batch_size_fn=float, **options)

    def come(self, callers: int, **asked: Any) -> None:
        super().come(callers, cost=self.cost, **asked)


def test_an_urgent_request_leaves_in_time_for_the_cost_of_the_callers_awaited():
    loop = Costly(2, max_batch_size=16)
    loop.learn()
    loop.come(1)
    unhurried = loop.decide()
    lead_s = loop.former.pressures.lead_s(8)
    loop.come(1, deadline=unhurried.until - 0.0003 + lead_s)
    assert loop.decide().until == pytest.approx(unhurried.until - 0.0003)


def test_all_callers_are_awaited_where_their_number_does_not_fill_a_batch():
    loop = Costly(0.5, max_batch_size=3)
    loop.learn()
    loop.come(1)
    assert loop.decide().wake_at == 4


@pytest.mark.parametrize("run_s", [0.0001, 0.0004])
def test_nobody_is_waited_for_where_a_batch_costs_next_to_nothing(run_s):
    loop = Loop()
    loop.learn(lasts_s=run_s)
    assert not loop.former.regathering.rounds
    loop.come(1)
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)


def test_the_time_in_which_callers_get_their_results_is_not_theirs():
    late, told = Loop(), Loop()
    for loop in (late, told):
        for nth in range(16):
            callers = loop.run(loop.settled(), lasts_s=0.002 * (1 + nth % 2 * 0.01))
            loop.now += 0.01  # more than a batch costs
            if loop is told:
                loop.former.regathering.callers_ran(loop.now)
            for _ in range(callers):
                loop.now += 0.00001
                loop.come(1)
    for loop, waits in ((late, False), (told, True)):
        loop.run(loop.settled(), lasts_s=0.002)
        loop.come(1)
        assert isinstance(loop.decide(), Wait) is waits


class Own(WholeQueuePolicy):
    def __init__(self, options):
        super().__init__()

    def choose(self, queue, now, pressure):
        return queue, DispatchReason.TIMER


@pytest.mark.parametrize(
    "options",
    [
        {"regather": False},
        {"adaptive": LatencyTarget(p99_s=10)},
        {"bucket_by": lambda item: 1},
        {"policy": Own},
        {"priority_levels": 2, "priority_mixing": "isolate"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_it_can_be_turned_off_and_is_where_another_rule_decides(options):
    loop = learned(**options)
    assert not loop.former.regathering.rounds
    loop.come(1)
    loop.come(1)
    decision = loop.decide()
    if "adaptive" not in options:
        assert isinstance(decision, Dispatch)
        assert decision.reason is DispatchReason.TIMER


def test_it_can_be_changed_while_running():
    loop = waiting(1)
    loop.former.change(loop.former.options.changed({"regather": False}), lambda request: None)
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)
    loop.former.change(loop.former.options.changed({"regather": True}), lambda request: None)
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)  # it learns anew


def test_a_window_that_is_longer_than_the_return_ends_as_before():
    loop = learned(batch_wait_timeout_s=0.01)
    loop.come(1)
    came_at = loop.now
    wait = loop.wait()
    assert wait.until == came_at + 0.01
    loop.now = wait.until
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)


def test_slots_without_limit_wait_for_nobody():
    loop = learned(max_concurrent_batches=None)
    loop.former.idle_slots = math.inf
    loop.come(1)
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)


@pytest.mark.parametrize(("away", "in_order"), [(2, True), (1, False)])
def test_only_the_share_that_comes_back_is_expected_in_whatever_order(away, in_order):
    loop = Loop(priority_levels=1 if in_order else 2)
    loop.in_order = in_order
    assert loop.learn(20, away=away) == 4
    loop.come(1)
    assert loop.wait().wake_at == 4


def test_few_rounds_prove_nothing():
    loop = Loop(2)
    loop.learn(5)
    loop.come(1)
    assert loop.decide() == Dispatch(1, DispatchReason.TIMER)


def test_it_waits_no_longer_than_running_them_apart_costs():
    loop = Loop()
    loop.learn(16, lasts_s=0.01, back_s=0.0024)  # a quarter of the run, while all sizes are alike
    ended_at = loop.now - 0.0001
    loop.come(1)
    wait = loop.wait()
    assert wait.until - ended_at == pytest.approx(0.0025, rel=0.02)


def test_those_who_queued_meanwhile_count_for_a_full_batch():
    loop = learned()
    loop.come(4)
    loop.run(loop.decide(), late=6)
    wait = loop.wait()
    assert wait.wake_at == 8
