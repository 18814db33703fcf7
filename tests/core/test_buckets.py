"""Buckets: their order, when a slot is woken, and that empty ones are dropped."""

import gc
from typing import Any

import pytest

from core.former_scenes import admit, hand_out, new, queue, take
from shoal.core.policies.buckets import Buckets
from shoal.core.policy import Dispatch
from shoal.core.request import Request, State

KEYS: dict[str, Any] = {"bucket_by": len, "max_batch_size": 2}


@pytest.mark.parametrize("how", ["leaves", "comes"])
def test_a_slot_is_not_woken_for_a_bucket_that_is_due_later(how: str) -> None:
    name = "batch_wait_timeout_s" if how == "leaves" else "idle_timeout_s"
    first = new(0.0, key="a")
    former = queue(first, bucket_by=len, **{name: 1.0})
    assert former.decide(0.0).until == 1.0  # type: ignore[union-attr]
    admit(former, new(0.5, key="a"))
    if how == "leaves":
        former.leave(first)
    assert former.decide(0.5).until == 1.5  # type: ignore[union-attr]


def test_a_bucket_that_is_empty_is_forgotten_and_keeps_no_request() -> None:
    former = queue(new(-1, key="stays"), priority_levels=2, batch_wait_timeout_s=3600, **KEYS)
    gc.collect()
    before = sum(isinstance(found, Request) for found in gc.get_objects())
    for key in range(40):
        pair = [new(0, key=key), new(0, key=key)]
        admit(former, *pair)
        assert take(former) == pair
        for one in pair:
            one.state = State.FINISHED
    del pair, one
    former.decide(0.0)
    gc.collect()
    assert sum(isinstance(found, Request) for found in gc.get_objects()) <= before + 2
    assert isinstance(former._policy, Buckets)
    assert list(former._policy._buckets) == ["stays"]


def test_newcomers_that_lead_a_bucket_and_leave_are_forgotten() -> None:
    taken, stays = new(0, key="a", deadline=1e9), new(0, key="b", deadline=2e9)
    former = queue(taken, stays, order="deadline", **KEYS)
    assert take(former) == [taken]
    for n in range(5000):
        one = new(0, key="b", deadline=1e8 - n)
        former.admit(one)
        former.leave(one)
    assert isinstance(former._policy, Buckets)
    assert len(former._policy._ready) + len(former._policy._agenda) < 300
    assert take(former) == [stays]


def test_when_its_head_leaves_a_bucket_is_as_old_as_its_next() -> None:
    leaves, stays, other = new(0, key="a"), new(2, key="a"), new(1, key="b")
    former = queue(leaves, other, stays, batch_wait_timeout_s=5, **{**KEYS, "max_batch_size": 3})
    third = new(0, key="c")
    admit(former, third)
    decision = former.decide(9.0)  # all are looked at
    assert isinstance(decision, Dispatch)
    former.leave(leaves)
    assert [take(former, 9.0) for _ in range(3)] == [[third], [other], [stays]]


def test_requests_that_are_put_back_are_dispatched_at_once() -> None:
    leaves, stays = new(0, key="a"), new(0, key="a")
    former = queue(leaves, stays, **KEYS)
    taken = hand_out(former)
    leaves.state = State.CANCELLED
    former.put_back(taken)
    assert take(former) == [stays]
