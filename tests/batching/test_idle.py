"""Who waits costs nothing, and many requests leave in linear time, leave nothing, and are small.

Work is counted in calls of Shoal's own code, never in seconds.
"""

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
import trio

import shoal
from batching.callers import launch
from batching.scenes import Held, opening, plugged
from handlers import echo
from shoal.core.forming.former import Former
from shoal.core.request import Request
from shoal.testing import settle, virtual_time

HOME = str(Path(shoal.__file__).parent)
THE_CLOCK = virtual_time.__file__
HOUR_S = 3600.0


class Activity:
    """What Shoal's code did: how often any of it ran, and how often a slot looked at the queue.

    A slot that is woken looks at the queue; after a batch it looks once more and goes to sleep.
    """

    def __init__(self) -> None:
        self.anything = 0
        self.looks = 0

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if file.startswith(HOME) and file != THE_CLOCK:
            self.anything += 1
            self.looks += event == "call" and frame.f_code is Former.decide.__code__


@contextmanager
def watched() -> Iterator[Activity]:
    activity = Activity()
    gc.disable()  # what other tests have left runs code when it is collected
    sys.setprofile(activity.note)
    try:
        yield activity
    finally:
        sys.setprofile(None)
        gc.enable()


async def echo_steps(items: list[Any]) -> Any:
    yield items


async def use(batcher: shoal.Batcher[Any]) -> None:
    if batcher.streams:
        assert [item async for item in batcher.call(1)] == [1]
    else:
        assert await batcher.call(1) == 1


async def run_for_an_hour(items: list[Any]) -> list[Any]:
    await anyio.sleep(HOUR_S)
    return items


@pytest.mark.parametrize("handler", [echo, echo_steps])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("wait_s", [0.0, 10.0, None])
async def test_an_idle_batcher_does_nothing(handler: Any, slots: int, wait_s: float | None) -> None:
    batcher = shoal.Batcher(handler, max_concurrent_batches=slots, batch_wait_timeout_s=wait_s)
    async with batcher:
        for _ in range(2):
            await settle()
            with watched() as activity:
                await anyio.sleep(HOUR_S)
            assert activity.anything == 0
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use, batcher)
                await settle()
                batcher.flush()


async def test_a_running_batch_wakes_nobody() -> None:
    async with opening(run_for_an_hour) as (_, call, tasks):
        tasks.start_soon(call, 1)
        await settle()
        with watched() as activity:
            await anyio.sleep(HOUR_S / 2)
        assert activity.anything == 0


async def test_who_comes_behind_a_busy_slot_wakes_nobody() -> None:
    batcher = shoal.Batcher(run_for_an_hour, max_batch_size=4, batch_wait_timeout_s=1.0)
    async with opening(batcher) as (_, call, tasks):
        tasks.start_soon(call.map, range(4))
        await settle()
        with watched() as activity:
            for item in range(10):
                tasks.start_soon(call, item)
                await anyio.sleep(5.0)
        assert activity.anything > 0
        assert activity.looks == 0


@pytest.mark.parametrize("wait_s", [60.0, None])
async def test_filling_a_batch_wakes_the_slot_for_the_first_and_the_last(wait_s):
    async with opening(echo, max_batch_size=8, batch_wait_timeout_s=wait_s) as (_, call, tasks):
        await settle()
        with watched() as activity:
            for item in range(7):
                tasks.start_soon(call, item)
                await anyio.sleep(1.0)
                assert activity.looks == 1
            await call(7)
            await settle()
        assert activity.looks == 3


async def test_a_window_that_ends_wakes_the_slot_once() -> None:
    async with opening(echo, max_batch_size=8, batch_wait_timeout_s=60.0) as (_, call, tasks):
        await settle()
        with watched() as activity:
            for item in range(4):
                tasks.start_soon(call, item)
                await anyio.sleep(1.0)
            await anyio.sleep(50.0)
            assert activity.looks == 1
            await anyio.sleep(10.0)
        assert activity.looks == 3


MANY = 100_000
MOST_BYTES = 600


async def test_a_hundred_thousand_requests_wait_and_are_answered() -> None:
    held = Held(lambda item: 2 * item)
    async with opening(held, max_batch_size=1000) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call.map(range(MANY)))
        assert batcher.statistics().queued == MANY - 1000
        held.gate.set()
    assert caller.outcome == [2 * item for item in range(MANY)]
    assert batcher.statistics().finished == MANY


@pytest.mark.slow
async def test_callers_leave_in_linear_time() -> None:
    work = [await _work_of_leaving(150), await _work_of_leaving(1500)]
    assert work[1] <= 11 * work[0]


async def _work_of_leaving(callers: int) -> int:
    """Counts what Shoal does when all leave that wait, some behind a busy slot and some parked."""

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
            with watched() as activity, anyio.CancelScope(shield=True):
                tasks.cancel_scope.cancel()
                await settle()
        now = batcher.statistics()
        assert (now.queued, now.parked, now.cancelled) == (0, 0, callers)
    return activity.anything


async def test_callers_that_come_and_go_behind_a_busy_slot_leave_nothing_behind(held: Held) -> None:
    def requests_alive() -> int:
        gc.collect()
        return sum(type(found) is Request for found in gc.get_objects())

    before = requests_alive()
    async with plugged(held) as (_, call, tasks):
        tasks.start_soon(call, 1)
        for _ in range(2000):
            with anyio.move_on_after(1):
                await call(2)
        assert requests_alive() - before < 150


@pytest.mark.slow
async def test_a_request_in_the_queue_is_small() -> None:
    """What a call takes beyond a task that is parked and does nothing else."""
    callers = 300

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
