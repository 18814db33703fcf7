"""The policy check: it reports each broken promise, and every built-in rule keeps them all."""

import re
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, line_up
from shoal.core.latency_model import LatencyModel
from shoal.core.options.options import BatchOptions
from shoal.core.options.records import LatencyTarget, QueuePolicy
from shoal.core.policies.adaptive import AdaptiveRule
from shoal.core.policies.factory import policy_of
from shoal.core.policy import BatchPolicy, Dispatch, Pressure, Wait, WholeQueuePolicy
from shoal.core.replicas.members import NO_MEMBERS
from shoal.core.request import DispatchReason, Request
from shoal.testing import ScriptedHandler, check_policy, make_request, settle

SIZE = 3
WINDOW_S = 1.0


class SizeOrWindow(BatchPolicy):
    """A minimal correct policy; each subclass below breaks one promise."""

    def __init__(self) -> None:
        self.queue: list[Request] = []

    def add(self, request: Request) -> bool:
        self.queue.append(request)
        return False

    def remove(self, request: Request) -> None:
        self.queue.remove(request)

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        if not self.queue:
            return Wait(None, 1)
        if pressure is not None:
            return Dispatch(SIZE, pressure.reason)
        if len(self.queue) >= SIZE:
            return Dispatch(SIZE, DispatchReason.FULL)
        due = self.queue[0].arrived_at + WINDOW_S
        return Dispatch(SIZE, DispatchReason.TIMER) if due <= now else Wait(due, SIZE)

    def take(self, dispatch: Dispatch) -> list[Request]:
        taken, self.queue = self.queue[: dispatch.size], self.queue[dispatch.size :]
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self.queue = [*requests, *self.queue]

    def waiting(self) -> Iterable[Request]:
        return self.queue


class LosesOne(SizeOrWindow):
    def take(self, dispatch: Dispatch) -> list[Request]:
        taken = super().take(dispatch)
        del self.queue[3:4]
        return taken


class HandsOutAgain(SizeOrWindow):
    """Reports the right waiting requests, but returns the last batch's first request again."""

    last: Request | None = None

    def take(self, dispatch: Dispatch) -> list[Request]:
        taken = super().take(dispatch)
        again = [] if self.last is None else [self.last]
        self.last = taken[0]
        return taken if len(taken) == dispatch.size else [*taken, *again]


class HandsOutWhoHasLeft(SizeOrWindow):
    def remove(self, request: Request) -> None:
        pass


class WaitsUnderPressure(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return super().decide(now, None)


class DispatchesOnceForOne(SizeOrWindow):
    last: Request | None = None

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        wanted = None if pressure is None else pressure.request
        is_asked_again = wanted is not None and wanted is self.last
        self.last = wanted
        return super().decide(now, None if is_asked_again else pressure)


class SaysThatOneWaitsTwice(SizeOrWindow):
    def waiting(self) -> Iterable[Request]:
        return [*self.queue, *self.queue[:1]]


class TakesNothing(SizeOrWindow):
    def take(self, dispatch: Dispatch) -> list[Request]:
        return []


class TakesTooMuch(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        decision = super().decide(now, pressure)
        return Dispatch(2, decision.reason) if isinstance(decision, Dispatch) else decision

    def take(self, dispatch: Dispatch) -> list[Request]:
        return super().take(Dispatch(SIZE, dispatch.reason))


class DispatchesAnEmptyQueue(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return super().decide(now, pressure) if self.queue else Dispatch(1, DispatchReason.TIMER)


class WaitsForMoreForever(SizeOrWindow):
    """Waits for more requests forever; extra calls of `decide` do not reveal it."""

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return super().decide(now, pressure) if pressure is not None else Wait(None)


class NamesATimeThatHasCome(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        decision = super().decide(now, pressure)
        return Wait(now) if isinstance(decision, Wait) and self.queue else decision


class NamesATimeForNobody(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return super().decide(now, pressure) if self.queue else Wait(now + WINDOW_S, 1)


class SleepsThroughAnUrgentOne(SizeOrWindow):
    """A request with an odd item has half the window, but no slot is woken for it."""

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        decision = super().decide(now, pressure)
        if isinstance(decision, Dispatch) or not self.queue:
            return decision
        due = min(request.arrived_at + WINDOW_S / (1 + request.item % 2) for request in self.queue)
        return Dispatch(SIZE, DispatchReason.TIMER) if due <= now else Wait(due, SIZE)


class PutsBackToTheEnd(SizeOrWindow):
    def put_back(self, requests: Sequence[Request]) -> None:
        self.queue += requests


class DecidesOtherwise(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return super().decide(now, pressure) if self.queue else None


BROKEN = {
    LosesOne: "exactly once",
    HandsOutAgain: "exactly once",
    HandsOutWhoHasLeft: "exactly once",
    WaitsUnderPressure: "with a pressure",
    DispatchesOnceForOne: "with a pressure",
    SaysThatOneWaitsTwice: "exactly once",
    TakesNothing: "at least one request and at most its size",
    TakesTooMuch: "at least one request and at most its size",
    DispatchesAnEmptyQueue: "an empty queue",
    WaitsForMoreForever: "when to decide again",
    NamesATimeThatHasCome: "the time that Wait named",
    NamesATimeForNobody: "the time that Wait named",
    SleepsThroughAnUrgentOne: "when to decide again",
    PutsBackToTheEnd: "old positions",
    DecidesOtherwise: "decide returns Dispatch or Wait",
}


class AddTells(SizeOrWindow):
    """A policy whose `add` tells when a slot must decide again."""

    def add(self, request: Request) -> bool:
        super().add(request)
        return len(self.queue) in (1, SIZE)

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        decision = super().decide(now, pressure)
        return Wait(decision.until) if isinstance(decision, Wait) else decision


class OnlyWhenFull(SizeOrWindow):
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        if pressure is None and len(self.queue) < SIZE:
            return Wait(None, SIZE)
        return super().decide(now, pressure)


class UntilIdle(WholeQueuePolicy):
    """Waits until no request has arrived for some time, without another limit."""

    def choose(self, queue, now, pressure):
        if pressure is not None:
            return queue[:SIZE], pressure.reason
        due = queue[-1].arrived_at + WINDOW_S
        return (queue[:SIZE], DispatchReason.IDLE) if due <= now else Wait(due)


class EqualItems(WholeQueuePolicy):
    """Takes requests from anywhere in the queue, and waits only for more of them."""

    def choose(self, queue, now, pressure):
        groups: dict[int, list[Request]] = {}
        for request in queue:
            groups.setdefault(request.item, []).append(request)
        for group in groups.values():
            if len(group) >= SIZE:
                return group[:SIZE], DispatchReason.FULL
        return Wait(None) if pressure is None else (groups[queue[0].item][:SIZE], pressure.reason)


@pytest.mark.parametrize("policy", [SizeOrWindow, AddTells, OnlyWhenFull, UntilIdle, EqualItems])
def test_a_policy_that_keeps_its_promises_passes(policy):
    check_policy(policy, seeds=range(0, 1000, 10))


@pytest.mark.parametrize("policy", BROKEN, ids=lambda policy: policy.__name__)
def test_a_promise_that_is_broken_is_named(policy):
    with pytest.raises(AssertionError, match=f"^{policy.__name__} .*{BROKEN[policy]}"):
        check_policy(policy)


def test_the_report_says_how_to_come_there_again():
    with pytest.raises(AssertionError) as found:
        check_policy(WaitsUnderPressure)
    seed = int(re.search(r"seeds=\[(\d+)\]", str(found.value))[1])
    with pytest.raises(AssertionError) as again:
        check_policy(WaitsUnderPressure, seeds=[seed])
    assert str(again.value) == str(found.value)
    last = str(found.value).splitlines()[-1]
    assert re.fullmatch(r"decide\(.*, pressure=\w+\).* -> Wait\(until=.*, wake_at=3\)", last)


def test_the_first_programs_are_short_and_show_every_step():
    with pytest.raises(AssertionError) as found:
        check_policy(TakesNothing)
    steps = str(found.value).splitlines()[1:]
    assert len(steps) < 20
    assert any(re.match(r"add\(r1\), item=\d+, arrived_at=", step) for step in steps)
    assert steps[-1] == "take -> []"


def test_of_a_long_program_the_end_is_shown():
    with pytest.raises(AssertionError) as found:
        check_policy(WaitsForMoreForever, seeds=[300])
    steps = str(found.value).splitlines()[1:]
    assert re.fullmatch(r"\.\.\. \d+ steps before", steps[0])
    assert len(steps) == 51


@pytest.mark.parametrize("method", ["add", "remove", "decide", "take", "put_back", "waiting"])
def test_what_a_policy_raises_breaks_a_promise(method):
    def fail(*_: object) -> None:
        raise KeyError("oops")

    policy = type("Raises", (SizeOrWindow,), {method: fail})
    with pytest.raises(AssertionError, match="raises no exceptions") as found:
        check_policy(policy)
    assert isinstance(found.value.__cause__, KeyError)
    assert f"{method}" in str(found.value).splitlines()[-1]
    assert str(found.value).endswith("raises KeyError('oops')")


def test_requests_are_made_as_the_policy_needs_them():
    seen = []

    def request(random: Random, arrived_at: float) -> Request:
        seen.append(
            make_request(
                "x" * random.randint(1, 5),
                arrived_at=arrived_at,
                priority=random.randint(1, 3),
                deadline=arrived_at + 1,
                cost=2.5,
                key="k",
                metadata={"user": 7},
            )
        )
        return seen[-1]

    check_policy(SizeOrWindow, make_request=request, seeds=[200])
    assert {request.priority for request in seen} == {1, 2, 3}
    assert {(r.cost, r.key, r.metadata["user"]) for r in seen} == {(2.5, "k", 7)}
    assert all(request.deadline == request.arrived_at + 1 for request in seen)
    arrivals = [request.arrived_at for request in seen]
    assert arrivals == sorted(arrivals)


def test_some_requests_were_parked_before_they_are_added():
    waited = []

    class NotesTheTime(SizeOrWindow):
        now = 0.0

        def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
            self.now = now
            return super().decide(now, pressure)

        def add(self, request: Request) -> bool:
            waited.append(self.now > request.arrived_at)
            return super().add(request)

    check_policy(NotesTheTime, seeds=range(100))
    assert 0 < sum(waited) < len(waited) / 2


def test_a_request_that_is_made_says_what_a_plain_call_does():
    request = make_request("item")
    assert (request.item, request.arrived_at, request.priority, request.cost) == ("item", 0.0, 1, 1)
    assert (request.deadline, request.key, dict(request.metadata)) == (None, None, {})
    assert not request.cancelled


# A user's policy in a batcher: a policy that passes the check works there


class EvenBeforeOdd(WholeQueuePolicy):
    """Dispatches even numbers at once; odd ones only under pressure, when no even ones wait."""

    def __init__(self, options: BatchOptions) -> None:
        super().__init__()
        self.size = options.max_batch_size

    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        even = [request for request in queue if request.item % 2 == 0]
        if even:
            return even[: self.size], DispatchReason.FULL
        return Wait(None) if pressure is None else (queue[: self.size], pressure.reason)


async def test_who_leaves_while_a_batch_is_taken_is_not_in_it():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    batcher = shoal.Batcher(handler, policy=EvenBeforeOdd, max_batch_size=3)
    async with batcher as call, anyio.create_task_group() as tasks:
        stays, leaves = await line_up(tasks, call(1), call(3))
        await settle()
        batcher.flush()  # the slot is woken first, and finds that a caller has left
        leaves.leave()
        batch = await handler.next_batch()
        assert batch.items == [1]
        batch.answer([-1])
        await settle()
        assert (stays.outcome, leaves.outcome) == (-1, LEFT)
        await handler.no_batch()


OPTIONS: dict[str, dict[str, Any]] = {
    "size alone": {},
    "a window": {"batch_wait_timeout_s": 0.5},
    "until full": {"batch_wait_timeout_s": None},
    "until idle": {"idle_timeout_s": 0.2},
    "until idle, in a window": {"idle_timeout_s": 0.2, "batch_wait_timeout_s": 0.5},
    "costs": {"batch_size_fn": float, "batch_wait_timeout_s": 0.5},
    "costs, until full": {"batch_size_fn": float, "batch_wait_timeout_s": None},
    "buckets": {"bucket_by": str, "batch_wait_timeout_s": 0.5},
    "buckets, until full": {"bucket_by": str, "batch_wait_timeout_s": None},
    "buckets, until idle": {"bucket_by": str, "idle_timeout_s": 0.2},
    "buckets with costs": {"bucket_by": str, "batch_size_fn": float, "batch_wait_timeout_s": 0.5},
    "padded up": {"allowed_batch_sizes": (2, 4), "batch_wait_timeout_s": 0.5},
    "padded down": {"allowed_batch_sizes": (2, 4), "padding": "down", "batch_wait_timeout_s": 0.5},
    "whatever costs less": {"allowed_batch_sizes": (2, 4), "padding": "cost"},
    "preferred sizes": {"preferred_batch_sizes": (2, 3), "batch_wait_timeout_s": 0.5},
    "preferred sizes, at once": {"preferred_batch_sizes": (2, 3)},
    "preferred sizes, until full": {"preferred_batch_sizes": (2, 4), "batch_wait_timeout_s": None},
    "preferred costs": {
        "preferred_batch_sizes": (2, 4),
        "batch_size_fn": float,
        "batch_wait_timeout_s": 0.5,
    },
    "levels": {"priority_levels": 3, "batch_wait_timeout_s": 0.5},
    "strict levels": {"priority_levels": 3, "priority_aging_s": None, "idle_timeout_s": 0.2},
    "levels apart": {
        "priority_levels": 3,
        "priority_mixing": "isolate",
        "batch_wait_timeout_s": 0.5,
    },
    "windows by level": {
        "priority_levels": 3,
        "batch_wait_timeout_s": 0.5,
        "queue_policies": {1: QueuePolicy(batch_wait_timeout_s=0.1)},
        "default_queue_policy": QueuePolicy(batch_wait_timeout_s=None, timeout_action="delay"),
    },
    "windows by level, levels apart": {
        "priority_levels": 3,
        "priority_mixing": "isolate",
        "batch_wait_timeout_s": 0.5,
        "queue_policies": {1: QueuePolicy(batch_wait_timeout_s=0.1)},
    },
    "earliest deadline first": {"order": "deadline", "batch_wait_timeout_s": 0.5},
    "a latency target": {"adaptive": LatencyTarget(p99_s=0.1)},
    "all at once": {
        "priority_levels": 3,
        "priority_mixing": "isolate",
        "bucket_by": str,
        "batch_size_fn": float,
        "idle_timeout_s": 0.2,
        "batch_wait_timeout_s": 0.5,
        "order": "deadline",
    },
}


def rule(options: BatchOptions) -> BatchPolicy:
    model = LatencyModel()
    for size in (1, 2, 4):
        model.observe(size, 0.01 + 0.01 * size)
    adaptive = None
    if options.adaptive is not None:
        adaptive = AdaptiveRule(
            options.adaptive, model, options.max_batch_size, options.max_concurrent_batches
        )
    return policy_of(options, model, adaptive, NO_MEMBERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [range(0, 1000, 40), pytest.param(range(1000), marks=pytest.mark.soak)],
    ids=["some seeds", "all seeds"],
)
@pytest.mark.parametrize("what", OPTIONS)
def test_a_rule_of_ours_keeps_its_promises(what, seeds):
    options = BatchOptions(max_batch_size=4, **OPTIONS[what])

    def request(random: Random, arrived_at: float) -> Request:
        return make_request(
            arrived_at=arrived_at,
            deadline=random.choice([None, arrived_at + random.random()]),
            priority=random.randint(1, options.priority_levels),
            cost=1 if options.batch_size_fn is None else random.choice([0, 1, 1.5, 2, 4]),
            key=None if options.bucket_by is None else random.choice("abc"),
        )

    check_policy(lambda: rule(options), make_request=request, seeds=seeds)
