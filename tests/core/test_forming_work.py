"""Forming batches costs O(log n): work is counted in comparisons and calls, not in seconds."""

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import shoal
from core.former_scenes import new, queue, take
from shoal import QueuePolicy
from shoal.core.forming.former import Former
from shoal.core.request import Request, State

HOME = str(Path(shoal.__file__).parent)
FEW, MANY = 10, 1000
STEPS = 50


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

    requests = [one() for _ in range(size + 2 * STEPS)]
    former = queue(idle=0, max_batch_size=4, **{"batch_wait_timeout_s": 60, **options})
    for request in requests:
        request.state = State.FAILED  # if it is refused
        former.admit(request)
    take(former, 1e9)
    newcomers = [one() for _ in range(STEPS)]
    return calls_of(lambda: use(former, requests, newcomers))


@pytest.mark.parametrize("rule", RULES)
def test_the_work_of_a_step_does_not_grow_with_the_queue(rule: str) -> None:
    few, many = (calls_of_steps(size, RULES[rule]) for size in (FEW, MANY))
    # A hundred times as many are 7 more levels of a heap, with some comparisons on each.
    assert many <= 1.5 * few + 100 * STEPS


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
