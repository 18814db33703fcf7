"""Queues from which any request can leave, each compared with a sorted list."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.queue import Amount, ArrivalQueue, RankedQueue, take_from
from shoal.core.request import State
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
