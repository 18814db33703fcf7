"""Many requests: they work, they leave in linear time, they leave nothing behind, and are small.

Work is counted in calls of Shoal's own code, never in seconds.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

import shoal
from shoal import BatchOptions
from shoal.core.forming.former import Former
from shoal.core.policies.rule import SizeOrWait
from shoal.core.policy import Dispatch
from shoal.core.request import Request, State
from shoal.testing import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized
    from types import FrameType

HOME = str(Path(shoal.__file__).parent)
MANY = 100_000
MOST_BYTES = 600


def work_of(function: Callable[[], object]) -> int:
    """Counts the calls, and the steps of generators, that a function makes in Shoal's code."""
    calls = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(HOME)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def former_of(size: int) -> tuple[Former, list[Request]]:
    former = Former(BatchOptions(max_batch_size=MANY, batch_wait_timeout_s=None))
    former.reform(idle_slots=0)
    requests: list[Request] = []
    for _ in range(size):
        request = Request()
        request.state = State.QUEUED
        request.arrived_at = 0.0
        request.options = None
        former.admit(request)
        requests.append(request)
    return former, requests


def queue_of(former: Former) -> Sized:
    """The places in the queue, with those of requests that have left."""
    assert isinstance(former._policy, SizeOrWait)
    return former._policy.queue


def in_some_order(requests: list[Request]) -> list[Request]:
    return random.Random(0).sample(requests, len(requests))


@pytest.mark.slow
@pytest.mark.parametrize("order", [list, lambda requests: requests[::-1], in_some_order])
def test_leaving_is_linear_in_those_who_leave(order: Any) -> None:
    def work(size: int) -> int:
        former, requests = former_of(size)

        def all_leave() -> None:
            for request in order(requests):
                former.leave(request)

        count = work_of(all_leave)
        assert former.live == 0
        assert len(queue_of(former)) < 100
        return count

    size = MANY // 4
    few, many = work(size // 10), work(size)
    assert many <= 11 * few
    assert many <= 8 * size


def test_half_of_the_queue_can_leave_while_the_other_half_stays_in_order() -> None:
    former, requests = former_of(MANY)
    for request in requests[::2]:
        former.leave(request)
    assert former.live == MANY // 2
    former.pressures.draining = True
    decision = former.decide(0.0)
    assert isinstance(decision, Dispatch)
    assert former.take(decision) == requests[1::2]
    assert former.live == len(queue_of(former)) == 0


@pytest.mark.anyio
async def test_a_hundred_thousand_requests_wait_and_are_answered() -> None:
    gate = anyio.Event()

    async def double(items: list[int]) -> list[int]:
        await gate.wait()
        return [2 * item for item in items]

    batcher = shoal.Batcher(double, max_batch_size=1000)
    results: list[Any] = []
    async with batcher as call, anyio.create_task_group() as tasks:

        async def ask() -> None:
            results.append(await call.map(range(MANY)))

        tasks.start_soon(ask)
        await settle()
        assert batcher.statistics().queued == MANY - 1000
        gate.set()
    assert results == [[2 * item for item in range(MANY)]]
    assert batcher.statistics().finished == MANY


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Spares a test that makes very many objects the search for garbage among them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("many", [MANY // 10, pytest.param(MANY, marks=pytest.mark.soak)])
async def test_very_many_callers_wait_and_leave(many: int) -> None:
    async def echo(items: list[Any]) -> list[Any]:
        return items

    batcher = shoal.Batcher(echo, max_batch_size=2 * many, batch_wait_timeout_s=None)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            for _ in range(many):
                tasks.start_soon(call, None)
            await settle()
            assert batcher.statistics().queued == many
            tasks.cancel_scope.cancel()
        now = batcher.statistics()
        assert (now.queued, now.cancelled) == (0, many)


@pytest.mark.slow
@pytest.mark.anyio
async def test_callers_leave_in_linear_time() -> None:
    work = [await _work_of_leaving(300), await _work_of_leaving(3000)]
    assert work[1] <= 11 * work[0]


async def _work_of_leaving(callers: int) -> int:
    """Counts what Shoal does when all leave that wait, some behind a busy slot and some parked."""
    calls = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "return") and frame.f_code.co_filename.startswith(HOME)

    async def never(items: list[Any]) -> list[Any]:
        await anyio.sleep_forever()
        return items

    batcher = shoal.Batcher(
        never, max_batch_size=1, max_queued_requests=callers // 2, overload="wait"
    )
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            for _ in range(callers):
                tasks.start_soon(call, None)
            await settle()
            now = batcher.statistics()
            assert (now.running, now.queued) == (1, callers // 2)
            assert now.parked == callers - 1 - callers // 2
            sys.setprofile(note)
            tasks.cancel_scope.cancel()
        sys.setprofile(None)
        now = batcher.statistics()
        assert (now.queued, now.parked, now.cancelled) == (0, 0, callers)
    return calls


@pytest.mark.anyio
async def test_callers_that_come_and_go_behind_a_busy_slot_leave_nothing_behind() -> None:
    gate = anyio.Event()

    async def held(items: list[Any]) -> list[Any]:
        await gate.wait()
        return items

    def requests_alive() -> int:
        gc.collect()
        return sum(type(found) is Request for found in gc.get_objects())

    before = requests_alive()
    async with shoal.Batcher(held) as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 0)
        await settle()
        tasks.start_soon(call, 1)
        for _ in range(2000):
            with anyio.move_on_after(1):
                await call(2)
        assert requests_alive() - before < 150
        gate.set()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_request_in_the_queue_is_small() -> None:
    """What a call takes beyond a task that is parked and does nothing else."""
    callers = 1000

    async def parked() -> None:
        if trio.lowlevel.in_trio_task():
            await trio.lowlevel.wait_task_rescheduled(_let_go)
        else:
            await asyncio.get_running_loop().create_future()

    async def bytes_each(function: Any, *args: Any) -> float:
        async with anyio.create_task_group() as tasks:
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(callers):
                tasks.start_soon(function, *args)
            await settle()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tasks.cancel_scope.cancel()
        return (after - before) / callers

    async def echo(items: list[Any]) -> list[Any]:
        return items

    options: dict[str, Any] = {"max_batch_size": 10 * callers, "batch_wait_timeout_s": None}
    async with shoal.Batcher(echo, **options) as call:
        tracemalloc.start()
        try:
            await bytes_each(call, None)  # what is made once is made now
            bare = await bytes_each(parked)
            calling = await bytes_each(call, None)
        finally:
            tracemalloc.stop()
    assert 0 < calling - bare <= MOST_BYTES


def _let_go(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED
