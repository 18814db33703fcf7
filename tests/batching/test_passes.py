"""For how many passes of the event loop a batch waits before a free slot takes it."""

import time
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import shoal
from batching.callers import outcomes
from batching.scenes import Recorder
from shoal.core.forming.regathering import WORTH_S


async def test_a_wait_of_0_takes_what_is_there_after_one_pass_of_the_scheduler(recorder):
    async with shoal.Batcher(recorder, batch_wait_timeout_s=0) as call:
        await outcomes(*map(call, range(7)))
        assert anyio.current_time() == 0
    assert [sorted(batch) for batch in recorder.batches] == [list(range(7))]


async def test_callers_that_come_again_at_once_travel_together(recorder: Recorder) -> None:
    async def caller(call: Any) -> None:
        for _ in range(5):
            await call(0)

    async with shoal.Batcher(recorder) as call, anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(caller, call)
    assert [len(batch) for batch in recorder.batches] == [4] * 5


@pytest.mark.parametrize("late_passes", [1, 2, 3])
async def test_callers_that_come_some_passes_later_are_gathered_again(
    late_passes: int, recorder: Recorder
) -> None:
    # As in a server: after a response, one pass of the loop reads the next request, and one calls.
    async def caller(call: Any, passes: int) -> None:
        await pass_by(passes)
        for _ in range(60):
            await call(0)
            await pass_by(2)

    async def pass_by(passes: int) -> None:
        for _ in range(passes):
            await anyio.lowlevel.checkpoint()

    async with shoal.Batcher(recorder) as call, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(caller, call, late_passes if number else 0)
    assert [len(batch) for batch in recorder.batches[8:50]] == [4] * 42


@pytest.mark.real_time
async def test_a_batch_waits_for_one_pass_only_if_that_takes_long(anyio_backend_name: str) -> None:
    passes, began = 0, list[int]()

    async def noting(items: list[int]) -> list[int]:
        began.append(passes)
        return items

    def work() -> None:
        nonlocal passes
        passes += 1
        time.sleep(2 * WORTH_S)

    async def work_always() -> None:
        while True:
            work()
            await anyio.lowlevel.checkpoint()

    async with shoal.Batcher(noting) as call, anyio.create_task_group() as tasks:
        await call.map(range(3))
        tasks.start_soon(work_always)
        await anyio.lowlevel.checkpoint()
        called = passes
        await call(0)
        tasks.cancel_scope.cancel()
    # With two more it would be 3; trio shuffles the tasks of a pass.
    assert began[-1] - called <= (2 if anyio_backend_name == "asyncio" else 4)
