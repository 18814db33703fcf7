"""Timers: their order, cancellation, and memory."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.timers import Timers

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0, math.inf])),
        st.tuples(st.just("forget"), st.integers(0, 20)),
        st.tuples(st.just("due"), st.sampled_from([0.0, 0.5, 1.0, 3.0, math.inf])),
        st.tuples(st.just("keep"), st.integers(1, 3)),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps=STEPS)
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
    assert len(timers._heap) + len(timers._queue) < 200
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
