"""Open batches in another process: full streams, callers that leave, and handlers that end."""

from typing import Any

import anyio
import pytest

import shoal
from batching.callers import Caller, line_up
from event_loops import one_loop_for_the_file as one_loop_for_the_file
from replicas.open_backends import Open
from replicas.playing import noted
from replicas.process_backends import Block
from replicas.test_process_open import HANG_S, batcher_of, calling, read
from replicas.test_process_open import folder as folder
from replicas.test_process_open import played as played
from replicas.test_process_open import replica_of as replica_of
from replicas.test_process_open import shared_path as shared_path
from shoal.errors import Unfinished

pytestmark = pytest.mark.real_time


async def test_a_send_to_several_streams_waits_until_all_have_room_at_once(played, folder):
    options = {"fill": "open", "max_batch_size": 2, "streams": True, "stream_buffer": 2}
    async with calling(played, "two_at_once", **options) as (call, _batcher):
        got: list[list[Any]] = [[], []]
        async with call("a") as a, call("b") as b, anyio.create_task_group() as tasks:
            await noted(folder, "both are full")
            tasks.start_soon(read, a, got[0])  # so `a` has room, and `b` has none any more
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(read, b, got[1])
    assert got == [["alone", "alone", "both"]] * 2


async def test_a_busy_handler_holds_no_items_of_callers_that_have_left(played, folder):
    async with calling(played, "counts_blocks", max_batch_size=2) as (call, batcher):
        async with anyio.create_task_group() as tasks:
            [first] = await line_up(tasks, call("a"))
            await noted(folder, "busy")
            for _ in range(50):
                with anyio.move_on_after(0.002):
                    await call(Block(bytearray(8)))
            folder.release("count")
        assert batcher.statistics().cancelled == 50
        assert first.outcome <= 2


@pytest.mark.parametrize("place", ["task", "process"])
async def test_a_handler_that_leaves_its_open_batch_gets_no_more_requests(played, folder, place):
    options = {"fill": "open", "max_batch_size": 4, "batch_wait_timeout_s": 60}
    if place == "process":
        batcher = batcher_of(played, "leaves_early", **options)
    else:
        code = Open(folder.path)
        batcher = shoal.Batcher(code.leaves_early, **options)
    with anyio.fail_after(HANG_S):
        async with batcher as call, anyio.create_task_group() as tasks:
            callers = await line_up(tasks, call("a"))
            await noted(folder, "left ['a']")
            await anyio.wait_all_tasks_blocked()
            callers += await line_up(tasks, call("b"))
            await anyio.wait_all_tasks_blocked()
            folder.release("leave")
    assert [caller.outcome for caller in callers] == [["a"], ["b"]]


async def test_large_answers_of_a_cancelled_handler_arrive(played, folder):
    options = {"fill": "open", "max_batch_size": 3, "batch_wait_timeout_s": 60}
    options["graceful_shutdown_timeout_s"] = 0.1
    async with (
        anyio.create_task_group() as tasks,
        calling(played, "answers_much", **options) as (call, _batcher),
    ):
        callers = await line_up(tasks, *[call(size) for size in (2**16, 0, 2**23 + 1)])
        await noted(folder, "waits")
    large, small, larger = [caller.outcome for caller in callers]
    assert small == "small"
    assert (len(large.memory), len(larger.memory)) == (2**16, 2**23 + 1)


async def test_tasks_that_outlive_their_handler_learn_that_it_has_ended(played, folder):
    options = {"streams": True, "stream_buffer": 2, "max_batch_size": 2}
    async with calling(played, "outlived", **options) as (call, _batcher):
        assert isinstance((await read(call("a")))[-1], Unfinished)
        await noted(folder, "no more to send: True")
        await noted(folder, "joined: []")


async def test_a_reader_is_not_slow_while_the_code_no_longer_waits(played, folder):
    """The code began to wait when the report of more room was still on its way."""
    options = {"streams": True, "stream_buffer": 2, "slow_reader_timeout_s": 0.02}
    async with calling(played, "goes_on", **options) as (call, _batcher), call(0) as stream:
        assert await anext(stream) == 1
        folder.release("the first is read")
        await noted(folder, "sent 2")
        await anyio.wait_all_tasks_blocked()
        folder.release("room is reported")
        folder.wait("the buffer is full")  # so the messages of it arrive together
        await anyio.sleep(0.1)
        folder.release("end")
        assert await read(stream) == [2, 3]


async def test_who_joins_after_a_first_request_has_left_is_queued_again(played, folder):
    """The handler answers for those with which its batch began, and for no others."""
    began, goes_on = anyio.Event(), anyio.Event()

    async def run(batch: shoal.OpenBatch[Any, Any]) -> None:
        began.set()
        await goes_on.wait()
        await played.replica.run_open("once", batch)

    batcher = shoal.Batcher(run, fill="continuous", max_batch_size=2)
    with anyio.fail_after(HANG_S):
        async with batcher as call, anyio.create_task_group() as tasks:
            first, second = Caller(call("a")), Caller(call("b"))
            for caller in (first, second):  # both before the batch begins
                tasks.start_soon(caller.run)
            await began.wait()
            first.leave()
            await anyio.wait_all_tasks_blocked()
            goes_on.set()
            await noted(folder, "once ['b']")
            third = (await line_up(tasks, call("c")))[0]
            folder.release("once")
    assert (second.outcome, third.outcome) == ("b", "c")


async def test_a_busy_handler_lets_the_tasks_beside_it_run(played):
    async with calling(played, "busy") as (call, _batcher):
        assert await call(3) >= 3
