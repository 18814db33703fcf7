"""Many requests: they work, they leave in linear time, they leave nothing behind, and are small.

Work is counted in calls of Shoal's own code, never in seconds.
"""

import asyncio
import gc
import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
import trio

import shoal
from handlers import echo
from shoal.core.request import Request
from shoal.testing import settle

HOME = str(Path(shoal.__file__).parent)
MANY = 100_000
MOST_BYTES = 600


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


@pytest.mark.slow
async def test_callers_leave_in_linear_time() -> None:
    work = [await _work_of_leaving(150), await _work_of_leaving(1500)]
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
