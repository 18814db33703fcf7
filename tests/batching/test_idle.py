"""Who waits costs nothing: wake-ups are counted, by what runs of Shoal's own code."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import shoal
from handlers import echo
from shoal.core.forming.former import Former
from shoal.testing import virtual_time
from shoal.testing.virtual_time import settle

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
    async with (
        anyio.create_task_group() as tasks,
        shoal.Batcher(run_for_an_hour, graceful_shutdown_timeout_s=HOUR_S) as call,
    ):
        tasks.start_soon(call, 1)
        await settle()
        with watched() as activity:
            await anyio.sleep(HOUR_S / 2)
        assert activity.anything == 0


async def test_who_comes_behind_a_busy_slot_wakes_nobody() -> None:
    async with (
        anyio.create_task_group() as tasks,
        shoal.Batcher(
            run_for_an_hour,
            max_batch_size=4,
            batch_wait_timeout_s=1.0,
            graceful_shutdown_timeout_s=9 * HOUR_S,
        ) as call,
    ):
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
    async with (
        anyio.create_task_group() as tasks,
        shoal.Batcher(echo, max_batch_size=8, batch_wait_timeout_s=wait_s) as call,
    ):
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
    async with (
        anyio.create_task_group() as tasks,
        shoal.Batcher(echo, max_batch_size=8, batch_wait_timeout_s=60.0) as call,
    ):
        await settle()
        with watched() as activity:
            for item in range(4):
                tasks.start_soon(call, item)
                await anyio.sleep(1.0)
            await anyio.sleep(50.0)
            assert activity.looks == 1
            await anyio.sleep(10.0)
        assert activity.looks == 3
