"""Queues from which any request can leave, each compared with a sorted list.

Forming batches costs O(log n): work is counted in comparisons and calls, not in seconds.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from core.former_scenes import ENDS, new, options_of, queue, take
from shoal import QueuePolicy
from shoal.core.forming.former import Former
from shoal.core.queue import Amount, ArrivalQueue, RankedQueue, take_from
from shoal.core.request import Request, RequestOptions, State
from shoal.core.timers import Timers
from shoal.testing import make_request

QUEUES: dict[str, Any] = {
    "by arrival": (ArrivalQueue, lambda one: one.options.number),
    "by rank": (
        partial(RankedQueue, lambda one: one.cost),
        lambda one: (one.cost, one.options.number),
    ),
}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("take"), st.sampled_from([0, 1, 2.5, 6])),
        st.tuples(st.just("pop, put back"), st.integers(0, 3)),
        st.tuples(st.just("sweep"), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", QUEUES)
@settings(max_examples=60)
@given(steps=STEPS)
def test_a_queue_is_a_sorted_list(name: str, steps: list[tuple[str, Any]]) -> None:
    make, order = QUEUES[name]
    queue, here = make(), []
    for number, (what, how) in enumerate(steps):
        if what == "push":
            one = make_request(priority=how, cost=how)
            assert one.options is not None
            one.options.number = number
            queue.push(one)
            here.append(one)
            here.sort(key=order)
        elif what == "leave" and here:
            here.pop(how % len(here)).state = State.CANCELLED
        elif what == "take":
            most = number % 5
            size = next(
                (n for n in range(len(here)) if sum(one.cost for one in here[: n + 1]) > how),
                len(here),
            )
            size = min(size, most)
            assert take_from(queue, Amount(most, how)) == here[:size]
            del here[:size]
        elif what == "pop, put back":
            popped = []
            for _ in range(min(how, len(here))):
                popped.append(queue.first())
                queue.pop()
            queue.put_back(popped)
        elif what == "sweep":
            queue.sweep()
            assert len(queue) == len(here)
        assert list(queue) == here
        assert queue.first() is (here[0] if here else None)
        assert len(queue) >= len(here)
    queue.clear()
    assert (list(queue), queue.first(), len(queue)) == ([], None, 0)


def test_a_ranked_queue_that_was_swept_is_in_order() -> None:
    queue = RankedQueue(lambda one: one.cost)
    requests = [make_request(cost=cost) for cost in (0, 5, 1, 6, 7, 2, 3)]
    for request in requests:
        queue.push(request)
    requests[2].state = State.CANCELLED
    queue.sweep()
    order: list[float] = []
    while (first := queue.first()) is not None:
        order.append(first.cost)
        queue.pop()
    assert order == [0, 2, 3, 5, 6, 7]


# Timers: their order, cancellation, and memory


TIMER_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0, math.inf])),
        st.tuples(st.just("forget"), st.integers(0, 20)),
        st.tuples(st.just("due"), st.sampled_from([0.0, 0.5, 1.0, 3.0, math.inf])),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps=TIMER_STEPS)
def test_timers_are_a_sorted_list(steps: list[tuple[str, Any]]) -> None:
    timers = Timers()
    here: list[tuple[float, int, Any]] = []
    gone: list[Any] = []
    for number, (what, how) in enumerate(steps):
        if what == "add":
            here.append((how, number, timers.add(how, number)))
            here.sort(key=lambda entry: entry[:2])
        elif what == "forget" and here:
            _, _, timer = here.pop(how % len(here))
            timers.forget(timer)
            gone.append(timer)
        elif what == "due":
            due = [entry for entry in here if entry[0] <= how]
            assert list(timers.due(how)) == [number for _, number, _ in due]
            gone += [timer for _, _, timer in due]
            del here[: len(due)]
        assert len(timers) == len(here)
        assert timers.next_at() == (here[0][0] if here else math.inf)
        assert timers.first() == (here[0][1] if here else None)


def test_timers_that_are_forgotten_take_no_room() -> None:
    timers = Timers()
    timers.add(0.0, "the first stays")
    for n in range(10_000):
        timers.forget(timers.add(1.0 + n % 7, "it"))
    assert len(timers._heap) < 200
    assert len(timers) == 1


def test_timers_whose_subjects_are_not_wanted_take_no_room() -> None:
    timers = Timers(lambda n: n == 3)
    for n in range(10_000):
        timers.add(1.0, n)
    assert len(timers._heap) < 200
    assert 3 in timers.due(1.0)


def test_what_is_due_may_be_forgotten_while_others_are_and_after() -> None:
    timers = Timers()
    made = [timers.add(1.0, n) for n in range(3)]
    seen = []
    for what in timers.due(1.0):
        seen.append(what)
        timers.forget(made[1])
    assert seen == [0, 2]
    for timer in made:
        timers.forget(timer)
    assert len(timers) == 0


# Requests: what a handler may read


def request(options: RequestOptions | None = None, state: State = State.QUEUED) -> Request:
    made = Request()
    made.item = "an item"
    made.options = options
    made.state = state
    return made


def test_a_request_shows_the_options_of_its_call_if_it_has_any() -> None:
    assert (request().deadline, request().metadata) == (None, {})
    shown = request(options_of(deadline=12.5, metadata={"user": 7}))
    assert shown.deadline == 12.5
    assert shown.metadata == {"user": 7}
    assert request(RequestOptions()).metadata == {}
    told = request(options_of(priority=3, cost=2.5, key=("a", 1)))
    assert (told.priority, told.cost, told.key) == (3, 2.5, ("a", 1))


@pytest.mark.parametrize("state", State)
def test_a_request_is_cancelled_when_nobody_waits_for_more(state: State) -> None:
    assert request(state=state).cancelled == (state in ENDS - {State.FINISHED})


def test_its_text_shows_the_state_and_the_start_of_the_item() -> None:
    assert repr(request()) == "<Request queued item='an item'>"
    long = request()
    long.item = "x" * 1000
    assert len(repr(long)) < 100


HOME = str(Path(shoal.__file__).parent)
FEW, MANY = 10, 1000
TURNS = 50


class Due(float):
    """A deadline whose comparisons are calls that count, though a heap in C makes them."""

    def __lt__(self, other: float) -> bool:
        return super().__lt__(other)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    __hash__ = float.__hash__


def calls_of(function: Callable[[], object]) -> int:
    """Counts calls and steps of generators in Shoal's code, and comparisons of deadlines."""
    calls = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith((HOME, __file__))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def use(former: Former, requests: list[Request], newcomers: list[Request]) -> None:
    """Admits some requests, cancels some, and takes some."""
    for step, newcomer in enumerate(newcomers):
        former.admit(newcomer)
        leaving = requests[step * 37 % len(requests)]
        if leaving.state is State.QUEUED:
            former.leave(leaving)
        take(former, 1e9)


STRICT: dict[str, Any] = {"order": "deadline", "priority_aging_s": None}
RULES: dict[str, dict[str, Any]] = {
    "size or wait": {},
    "costs": {"batch_size_fn": len, "max_queued_requests": 10**6},
    "levels": {"priority_levels": 3},
    "strict levels": {"priority_levels": 3, "priority_aging_s": None},
    "levels apart": {"priority_levels": 3, "priority_mixing": "isolate"},
    "windows by level": {
        "priority_levels": 3,
        "queue_policies": {2: QueuePolicy(batch_wait_timeout_s=5, max_queued_requests=10**6)},
    },
    "deadlines": {"order": "deadline"},
    "strict deadlines": STRICT,
    "strict deadlines in buckets": {**STRICT, "bucket_by": len},
    "allowed sizes": {"allowed_batch_sizes": (2, 4), "padding": "down"},
    "preferred sizes": {"preferred_batch_sizes": (2, 4), "priority_levels": 3},
    "buckets": {"bucket_by": len},
    "buckets until idle": {"bucket_by": len, "idle_timeout_s": 1, "batch_wait_timeout_s": 60},
    "full buckets with costs": {
        "bucket_by": len,
        "batch_size_fn": len,
        "max_queued_requests": 200,
        "overload": "shed_oldest",
    },
    "shedding": {"max_queued_requests": 200, "overload": "shed_lowest", "priority_levels": 3},
}


def calls_of_steps(size: int, options: dict[str, Any]) -> int:
    places = count()

    def one() -> Request:
        place = next(places)
        level = 1 + place % options.get("priority_levels", 1)
        made = new(0, priority=level, key=place // 4)
        assert made.options is not None
        made.options.due = Due(1e6 + place * 7919 % 10_007)
        return made

    requests = [one() for _ in range(size + 2 * TURNS)]
    former = queue(idle=0, max_batch_size=4, **{"batch_wait_timeout_s": 60, **options})
    for request in requests:
        request.state = State.FAILED  # if it is refused
        former.admit(request)
    take(former, 1e9)
    newcomers = [one() for _ in range(TURNS)]
    return calls_of(lambda: use(former, requests, newcomers))


@pytest.mark.parametrize("rule", RULES)
def test_the_work_of_a_step_does_not_grow_with_the_queue(rule: str) -> None:
    few, many = (calls_of_steps(size, RULES[rule]) for size in (FEW, MANY))
    # A hundred times as many are 7 more levels of a heap, with some comparisons on each.
    assert many <= 1.5 * few + 100 * TURNS


@pytest.mark.parametrize("rule", RULES)
def test_a_queue_is_emptied_in_linear_time(rule: str) -> None:
    def work(size: int) -> int:
        options = {name: value for name, value in RULES[rule].items() if name != "overload"}
        options.pop("max_queued_requests", None)
        requests = [new(n / size, priority=1, key=n % 50) for n in range(size)]
        former = queue(*requests, idle=0, max_batch_size=4, **options)
        former.drain()

        def empty() -> None:
            while former.live:
                take(former, 1.0)

        return calls_of(empty)

    few, many = work(400), work(4000)
    assert many <= 11 * few
