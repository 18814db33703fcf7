"""When and in which order requests run again, by each rule that forms batches."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import launch, outcome, outcomes
from batching.scenes import Refusing, opening, settle
from shoal import OpenBatch, RetryLater
from shoal.batching.open_relay import OpenRelay
from shoal.core.policy import Pressure, Wait, WholeQueuePolicy
from shoal.core.request import DispatchReason, Request


class Gated:
    """A handler whose batches end when a test says so."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gates: list[anyio.Event] = []
        self.errors: dict[int, Exception] = {}

    async def __call__(self, items: list[Any]) -> list[Any]:
        number = len(self.batches)
        self.batches.append(list(items))
        self.gates.append(anyio.Event())
        await self.gates[number].wait()
        if number in self.errors:
            raise self.errors[number]
        return items

    async def refuse(self, number: int) -> None:
        self.errors[number] = RetryLater(1)
        await self.end(number)

    async def end(self, number: int) -> None:
        self.gates[number].set()
        await settle()


def cost(item: Any) -> float:
    return 1


ORDERS: dict[str, dict[str, Any]] = {
    "alike": {},
    "costs": {"batch_size_fn": cost},
    "a window": {"batch_size_fn": cost, "batch_wait_timeout_s": 3},
    "until full": {"batch_wait_timeout_s": None},
    "levels": {"priority_levels": 2},
    "levels with windows": {
        "priority_levels": 2,
        "queue_policies": {1: shoal.QueuePolicy(batch_wait_timeout_s=5)},
    },
    "deadlines": {"order": "deadline"},
    "buckets": {"bucket_by": lambda item: 0},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("refused", [(0, 1, 2), (2, 1, 0), (1, 0), (0, 2)])
async def test_batches_come_back_in_the_order_of_arrival(order, refused):
    gated = Gated()
    options: Any = {"max_batch_size": 2, "max_concurrent_batches": 3, **ORDERS[order]}
    async with opening(gated, **options) as (batcher, call, tasks):

        async def ask() -> None:
            assert await call.map(range(9)) == [*range(9)]  # all in one instant

        tasks.start_soon(ask)
        await settle()
        assert gated.batches == [[0, 1], [2, 3], [4, 5]]
        for number in refused:
            await gated.refuse(number)
        for number in {0, 1, 2} - {*refused}:
            await gated.end(number)
        await anyio.sleep(2)
        batcher.flush()
        back = sorted(item for number in refused for item in gated.batches[number])
        again = [*back, 6, 7, 8]
        await ends(gated, batcher, 3)
        assert [item for batch in gated.batches[3:] for item in batch] == again
        assert [len(batch) for batch in gated.batches[3:-1]] == [2] * (len(again) // 2)


async def test_requests_of_mixed_batches_keep_the_order_of_arrival() -> None:
    gated = Gated()
    options: Any = {"batch_wait_timeout_s": None, "max_concurrent_batches": 2}
    async with opening(gated, max_batch_size=4, **options) as (batcher, call, tasks):
        callers = await launch(tasks, *(call(n) for n in range(12)))
        assert gated.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
        callers[1].leave()
        callers[2].leave()
        await gated.refuse(0)
        await anyio.sleep(2)
        assert gated.batches[2] == [0, 3, 8, 9]
        await gated.refuse(1)
        await gated.refuse(2)
        await anyio.sleep(2)
        assert gated.batches[3:] == [[0, 3, 4, 5], [6, 7, 8, 9]]
        for number in (3, 4, 5):
            batcher.flush()
            await settle()
            await gated.end(number)
    assert gated.batches[5] == [10, 11]


async def test_higher_levels_may_go_first() -> None:
    handler = Refusing([RetryLater(5)])
    async with opening(handler, max_batch_size=1, priority_levels=2) as (_, call, tasks):
        await launch(tasks, call.options(priority=2)("low"))
        await anyio.sleep(1)
        await launch(tasks, call.options(priority=1)("high"))
    assert handler.batches == [["low"], ["high"], ["low"]]


async def test_a_bucket_comes_back_whole_and_first() -> None:
    handler = Refusing([RetryLater(5)])
    async with opening(handler, bucket_by=len, batch_wait_timeout_s=60) as (batcher, call, tasks):
        await launch(tasks, call("a"), call("b"))
        batcher.flush()
        await settle()
        await launch(tasks, call("cc"), call("c"))
        await anyio.sleep(6)
        assert handler.batches == [["a", "b"], ["a", "b", "c"]]
    assert handler.batches[2:] == [["cc"]]


class Newest(WholeQueuePolicy):
    """A policy of the user's own: the newest request alone."""

    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        return queue[-1:], DispatchReason.TIMER


class Picky(Newest):
    """One that takes each request only once."""

    def __init__(self, options: object) -> None:
        super().__init__()
        self.seen: set[Request] = set()

    def add(self, request: Request) -> bool:
        if request in self.seen:
            raise LookupError("again")
        self.seen.add(request)
        return super().add(request)


async def test_a_policy_of_ones_own_gets_the_requests_again() -> None:
    handler = Refusing([RetryLater(5)])
    async with shoal.Batcher(handler, policy=lambda options: Newest()) as call:
        assert await outcomes(*(call(n) for n in range(3))) == [0, 1, 2]
    assert len(handler.batches) == 4


async def test_a_policy_that_raises_fails_that_call_alone() -> None:
    handler = Refusing([RetryLater(5)])
    batcher = shoal.Batcher(handler, policy=Picky)
    async with batcher as call:
        assert isinstance(await outcome(call(0)), LookupError)
        assert await call(1) == 1
        statistics = batcher.statistics()
    assert (statistics.failed, statistics.finished, statistics.queued) == (1, 1, 0)


async def ends(gated: Gated, batcher: shoal.Batcher[Any], first: int) -> None:
    """Ends the batches from some number on, and all that begin then."""
    while first < len(gated.batches):
        await gated.end(first)
        batcher.flush()
        await settle()
        first += 1


@pytest.mark.parametrize("order", ORDERS)
async def test_a_batch_may_come_back_to_an_empty_queue(order: str) -> None:
    handler = Refusing([RetryLater(5)], run_s=1)
    options: Any = {"max_batch_size": 2, **ORDERS[order]}
    async with shoal.Batcher(handler, **options) as call:
        assert await call.map(range(2)) == [0, 1]
    assert handler.batches == [[0, 1], [0, 1]]
    assert handler.starts[1] - handler.starts[0] == 6


async def test_a_new_bucket_is_ahead_of_younger_ones() -> None:
    handler = Refusing([RetryLater(5)], run_s=1)
    async with shoal.Batcher(handler, max_batch_size=1, bucket_by=lambda item: item) as call:
        await call.map("abc")
    assert handler.batches == [["a"], ["a"], ["b"], ["c"]]


async def test_a_bucket_that_is_ready_takes_the_place_of_its_oldest_request() -> None:
    gated = Gated()
    options: Any = {"max_batch_size": 1, "bucket_by": lambda item: item % 2}
    async with opening(gated, max_concurrent_batches=3, **options) as (batcher, call, tasks):
        tasks.start_soon(call.map, range(6))
        await settle()
        assert gated.batches == [[0], [1], [2]]
        await gated.refuse(1)
        await gated.refuse(2)
        await anyio.sleep(2)
        assert gated.batches[3:] == [[1], [2]]
        await ends(gated, batcher, 3)
        await gated.end(0)
        await ends(gated, batcher, 5)
    assert gated.batches[5:] == [[3], [4], [5]]


# The reason of their batch


async def test_a_retried_batch_is_not_called_flushed() -> None:
    gated = Gated()
    options: Any = {"bucket_by": lambda item: item, "max_concurrent_batches": 2}
    async with opening(gated, batch_wait_timeout_s=None, **options) as (batcher, call, tasks):
        await launch(tasks, call(0), call(1))
        batcher.flush()
        await settle()
        await gated.refuse(0)
        await gated.refuse(1)
        await anyio.sleep(2)
        for number in (2, 3):
            await gated.end(number)
        batches = batcher.statistics().batches
    assert gated.batches == [[0], [1], [0], [1]]
    assert {reason: number for reason, number in batches.items() if number} == {
        DispatchReason.FLUSH: 2,
        DispatchReason.LIMIT: 1,
        DispatchReason.RETRY: 1,
    }


async def test_requests_of_a_lost_open_batch_close_the_next_one_as_retried() -> None:
    reasons: list[DispatchReason] = []
    gate = anyio.Event()

    async def handler(batch: OpenBatch[int, int]) -> None:
        if not reasons:
            reasons.append(DispatchReason.OPEN)
            relay = OpenRelay(batch)
            await gate.wait()
            relay.queue_again()
            return
        async for request in batch:
            request.finish(request.item)
        reasons.append(batch.reason)

    async with opening(handler, fill="open", batch_wait_timeout_s=None) as (_, call, tasks):
        callers = await launch(tasks, call(0))
        callers += await launch(tasks, call(1))
        gate.set()
        await settle()
        assert callers[1].outcome == 1
    assert reasons[1] == DispatchReason.RETRY
