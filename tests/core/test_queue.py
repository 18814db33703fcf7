"""Queues from which any request can leave, each compared with a sorted list."""

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.former_scenes import ENDS
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
        st.tuples(st.just("keep"), st.integers(1, 3)),
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
        elif what == "keep":
            timers.keep(lambda number, how=how: number % how == 0)
            gone += [timer for _, number, timer in here if number % how]
            here = [entry for entry in here if entry[1] % how == 0]
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
    shown = request(RequestOptions(12.5, {"user": 7}))
    assert shown.deadline == 12.5
    assert shown.metadata == {"user": 7}
    assert request(RequestOptions()).metadata == {}
    told = request(RequestOptions(priority=3, cost=2.5, key=("a", 1)))
    assert (told.priority, told.cost, told.key) == (3, 2.5, ("a", 1))


@pytest.mark.parametrize("state", State)
def test_a_request_is_cancelled_when_nobody_waits_for_more(state: State) -> None:
    assert request(state=state).cancelled == (state in ENDS - {State.FINISHED})


def test_its_text_shows_the_state_and_the_start_of_the_item() -> None:
    assert repr(request()) == "<Request queued item='an item'>"
    long = request()
    long.item = "x" * 1000
    assert len(repr(long)) < 100
