"""Open batches in another process: full streams, callers that leave, and handlers that end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from batching.scenes import line_up
from event_loops import one_loop_for_the_file as one_loop_for_the_file
from replicas.playing import noted
from replicas.process_backends import Block
from replicas.test_process_open import calling, read
from replicas.test_process_open import folder as folder
from replicas.test_process_open import played as played
from replicas.test_process_open import shared_path as shared_path

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

HANG_S = 10


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
