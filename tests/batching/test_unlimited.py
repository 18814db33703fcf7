"""Threads that start at once, since nothing limits them."""

import threading

import anyio
import anyio.to_thread
import pytest

from shoal.loops.unlimited import UNLIMITED

pytestmark = pytest.mark.real_time


def test_a_thread_need_not_wait_for_tasks_that_are_ready() -> None:
    for step in (
        UNLIMITED.acquire_on_behalf_of(object()),
        UNLIMITED.__aenter__(),
        UNLIMITED.__aexit__(None, None, None),
    ):
        with pytest.raises(StopIteration):  # it has ended without giving the task back
            step.send(None)


async def test_any_number_of_threads_run_at_once() -> None:
    all_run = threading.Barrier(60)
    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(lambda: anyio.to_thread.run_sync(all_run.wait, limiter=UNLIMITED))


async def test_a_thread_of_a_cancelled_task_does_not_begin() -> None:
    ran: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.to_thread.run_sync(ran.append, 1, limiter=UNLIMITED)
    assert scope.cancelled_caught
    assert not ran
