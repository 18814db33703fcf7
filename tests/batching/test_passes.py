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
        for _ in range(120):
            await call(0)
            await pass_by(2)

    async def pass_by(passes: int) -> None:
        for _ in range(passes):
            await anyio.lowlevel.checkpoint()

    async with shoal.Batcher(recorder) as call, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(caller, call, late_passes if number else 0)
    # It may take a few batches, since trio shuffles the tasks of a pass.
    assert [len(batch) for batch in recorder.batches[60:100]] == [4] * 40


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("last_size", "pass_s", "regather", "most"),
    [(3, 0, True, 3), (3, 2 * WORTH_S, True, 2), (3, 0, False, 1), (1, 0, True, 1)],
    ids=["short passes", "long passes", "regather=False", "as large as the last"],
)
async def test_for_how_many_passes_a_batch_of_one_waits(
    last_size: int, pass_s: float, regather: bool, most: int, anyio_backend_name: str
) -> None:
    passes, began = 0, list[int]()

    async def noting(items: list[int]) -> list[int]:
        began.append(passes)
        return items

    def work() -> None:
        nonlocal passes
        passes += 1
        time.sleep(pass_s)

    async def work_in_each_pass() -> None:
        while True:
            work()
            await anyio.lowlevel.checkpoint()

    async with shoal.Batcher(noting, regather=regather) as call, anyio.create_task_group() as tasks:
        await call.map(range(last_size))
        tasks.start_soon(work_in_each_pass)
        await anyio.lowlevel.checkpoint()
        called = passes
        await call(0)
        tasks.cancel_scope.cancel()
    waited = began[-1] - called
    # trio shuffles the tasks of a pass, so that one more or less is seen of each.
    assert waited == most if anyio_backend_name == "asyncio" else waited <= most + 2


async def test_other_tasks_have_a_turn_after_each_batch_that_is_not_full(
    recorder: Recorder,
) -> None:
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await anyio.lowlevel.checkpoint()

    async with (
        shoal.Batcher(recorder, bucket_by=lambda item: item, max_batch_size=64) as call,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(count)
        await call.map(range(50))
        tasks.cancel_scope.cancel()
    assert passes >= 49
    assert len(recorder.batches) == 50
