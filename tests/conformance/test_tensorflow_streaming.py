"""What TensorFlow Serving's tests of its streaming batch scheduler assert (group TS).

Its batch is handed to a thread when it is started, and takes tasks while it is being processed: an
open batch, ``fill="open"``, with an item's cost for a task's size. M is `max_batch_size`, W is
`batch_wait_timeout_s`, the workers are `max_concurrent_batches`. It never queues a task, which is
``max_queued_requests=0``; TS10 to TS13 are about that and about trying again, see also
`test_retrying.py`.
"""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import PENDING, line_up, outcome, settle

WHEN = pytest.mark.parametrize("when", ["as they come", "when the batch is closed"])


class Streaming:
    """A handler that notes the tasks of its batches as they come, and answers then or at the end.

    Attributes:
        batches: The tasks of each batch, in the order in which the batches were started.
        closed_at: When each batch was closed.
        reasons: Why each batch was closed.
        gate: If set to an event, no batch ends before it.
    """

    def __init__(self, when: str = "as they come") -> None:
        self.batches: list[list[int]] = []
        self.closed_at: list[float] = []
        self.reasons: list[shoal.DispatchReason] = []
        self.gate: anyio.Event | None = None
        self._at_once = when == "as they come"

    async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:
        tasks: list[int] = []
        self.batches.append(tasks)
        async for request in batch:
            tasks.append(request.item)
            if self._at_once:
                request.finish(request.item)
        self.closed_at.append(round(anyio.current_time(), 6))
        self.reasons.append(batch.reason)
        if self.gate is not None:
            await self.gate.wait()
        for request in batch.active:
            request.finish(request.item)


def scheduler(handler: Streaming, **options: Any) -> shoal.Batcher[Any]:
    options = {"max_batch_size": 10, "batch_size_fn": lambda size: size, **options}
    return shoal.Batcher(handler, fill="open", **options)


@WHEN
async def test_ts2_full_batches_are_closed_and_none_is_empty(when):
    handler = Streaming(when)
    batcher = scheduler(handler, batch_wait_timeout_s=None, max_concurrent_batches=2)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = []
        for size in (3, 5, 3, 1, 6):
            callers += await line_up(tasks, call(size))
            await settle()
        assert [caller.outcome for caller in callers] == [3, 5, 3, 1, 6]
        assert handler.reasons == [shoal.DispatchReason.FULL] * 2
    assert handler.batches == [[3, 5], [3, 1, 6]]
    assert batcher.statistics().batch_size.total == 2


async def test_ts8_a_task_larger_than_a_batch_is_refused_alone():
    handler = Streaming()
    async with scheduler(handler) as call:
        with pytest.raises(shoal.errors.ItemTooLarge, match=r"costs 11, .* max_batch_size=10"):
            await call(11)
        assert await call(10) == 10
    assert handler.batches == [[10]]


async def test_ts10_a_task_is_taken_or_refused_never_both():
    handler = Streaming("when the batch is closed")
    handler.gate = anyio.Event()
    batcher = scheduler(
        handler, batch_wait_timeout_s=None, max_queued_requests=0, max_concurrent_batches=2
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = []
        for size in (7, 4, 5):  # the 4 does not fit and starts the second batch, the 5 joins it
            callers += await line_up(tasks, call(size))
            await settle()
        assert handler.batches == [[7], [4, 5]]
        before = batcher.statistics()
        refused = await outcome(call(2))  # both slots are busy, and there is room for 1
        assert isinstance(refused, shoal.errors.Overloaded)
        after = batcher.statistics()
        assert (after.queued, after.running, after.rejected) == (0, before.running, 1)
        callers += await line_up(tasks, call(1))
        handler.gate.set()
    assert [caller.outcome for caller in callers] == [7, 4, 5, 1]
    assert handler.batches == [[7], [4, 5, 1]]


async def test_ts9_a_wait_of_none_has_no_time_out():
    handler = Streaming("when the batch is closed")
    async with (
        scheduler(handler, batch_wait_timeout_s=None) as call,
        anyio.create_task_group() as tasks,
    ):
        callers = await line_up(tasks, call(1))
        await anyio.sleep(3600)
        assert callers[0].outcome is PENDING
        callers += await line_up(tasks, call(9))
    assert handler.batches == [[1, 9]]
