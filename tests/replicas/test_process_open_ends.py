"""Open batches in another process: full streams, callers that leave, and handlers that end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from event_loops import one_loop_for_the_file as one_loop_for_the_file
from replicas.playing import noted
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
