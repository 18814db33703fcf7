"""What TensorFlow's tests of its shared and its streaming batch schedulers assert (TB and TS).

A queue there is a batcher here, a task's size is an item's cost. M is `max_batch_size`, W is
`batch_wait_timeout_s`, the workers are `max_concurrent_batches`. Where the cases run with and
without splitting of large tasks, so do these. Two levels of priority: 1 is high, 2 is low.

A batch of the streaming scheduler is handed to a thread when it is started, and takes tasks while
it is being processed: an open batch, ``fill="open"``. It never queues a task, which is
``max_queued_requests=0``; TS10 to TS13 are about that and about trying again, see also
`test_retrying.py`.
"""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import PENDING, Caller, launch, line_up, outcome
from batching.scenes import Recorder, settle

HIGH, LOW = 1, 2
WHEN = pytest.mark.parametrize("when", ["as they come", "when the batch is closed"])


def parts(size: int, room: float) -> list[int]:
    made = [int(room)]
    while (left := size - sum(made)) > 0:
        made.append(min(left, 10))
    return made


SIZES: dict[str, Any] = {"batch_size_fn": lambda size: size}
SPLIT: dict[str, Any] = {**SIZES, "split": parts, "join": sum}
BOTH = pytest.mark.parametrize("sizes", [SIZES, SPLIT], ids=["whole", "splitting"])
LEVELS: dict[str, Any] = {
    **SIZES,
    "max_batch_size": 10,
    "batch_wait_timeout_s": 1,
    "priority_levels": 2,
}


async def send(queue: Recorder, *sent: tuple[int, int] | float, **options: Any) -> None:
    """Makes calls, each of a level and a size, with pauses of so many seconds, and awaits all."""
    async with shoal.Batcher(queue, **options) as call, anyio.create_task_group() as tasks:
        for one in sent:
            if isinstance(one, tuple):
                level, size = one
                await line_up(tasks, call.options(priority=level)(size))
            else:
                await anyio.sleep(one)


@BOTH
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("early", [False, True])
async def test_tb1_each_queue_gets_its_own_tasks_however_it_ends(sizes, workers, early):
    handlers = Recorder(), Recorder()
    options: dict[str, Any] = {
        **sizes,
        "max_batch_size": 10,
        "batch_wait_timeout_s": None,
        "max_concurrent_batches": workers,
    }
    queues = [shoal.Batcher(handler, **options) for handler in handlers]
    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(queue) for queue in queues]
        sent = [first(1), second(2), first(3), second(4)]
        callers = await line_up(tasks, *sent)
        if early:
            await queues[1].aclose()
        callers += await line_up(tasks, first(5))
    assert [caller.outcome for caller in callers] == [1, 2, 3, 4, 5]
    assert [handler.batches for handler in handlers] == [[[1, 3, 5]], [[2, 4]]]


@pytest.mark.parametrize(
    ("sizes", "sent", "batches"),
    [
        pytest.param(SIZES, [3, 5, 3, 1, 6], [[3, 5], [3, 1, 6]], id="whole"),
        pytest.param(SPLIT, [3, 5, 3, 1, 6, 1], [[3, 5, 2], [1, 1, 6, 1]], id="splitting"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
async def test_tb2_full_batches_leave_the_rest_goes_on_closing_and_none_is_empty(
    sizes, sent, batches, workers
):
    queue = Recorder()
    options = {**sizes, "max_batch_size": 10, "batch_wait_timeout_s": None}
    batcher = shoal.Batcher(queue, max_concurrent_batches=workers, **options)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = [(await line_up(tasks, call(size)))[0] for size in sent]
        await settle()
        assert all(queue.batches)
    assert [caller.outcome for caller in callers] == sent
    assert queue.batches == batches


@BOTH
async def test_tb3_ru8_the_time_out_of_a_batch_counts_from_its_own_first_task(sizes, recorder):
    options = {**sizes, "max_batch_size": 4, "batch_wait_timeout_s": 10}
    async with shoal.Batcher(recorder, **options) as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(1))
        await anyio.sleep(9)
        assert recorder.batches == []
        await anyio.sleep(7)
        await line_up(tasks, call(2))  # at 16 s
        await anyio.sleep(3)
        await line_up(tasks, call(2))  # at 19 s: the two are full
        await settle()
        await line_up(tasks, call(3))
        await anyio.sleep(1)
        assert recorder.batches == [[1], [2, 2]]
    assert recorder.batches == [[1], [2, 2], [3]]
    assert recorder.starts == [10, 19, 29]


@BOTH
@pytest.mark.parametrize("wait_s", [pytest.param(0.1, id="tb4"), pytest.param(0, id="tb5")])
async def test_tb4_tb5_underfull_batches_are_processed_one_after_the_other(sizes, wait_s, recorder):
    options = {**sizes, "max_batch_size": 10, "batch_wait_timeout_s": wait_s}
    async with shoal.Batcher(recorder, **options) as call:
        assert [await call(1), await call(2)] == [1, 2]
    assert (recorder.batches, recorder.starts) == ([[1], [2]], [wait_s, 2 * wait_s])


@BOTH
@pytest.mark.parametrize("bound", [1, 2, 5])
async def test_tb7_the_counts_are_exact_after_every_call(sizes, bound, held):
    options = {**sizes, "max_batch_size": 2, "max_queued_requests": 2 * bound}
    queue = shoal.Batcher(held, **options)
    async with queue as call, anyio.create_task_group() as tasks:
        assert queue.statistics().queued == 0
        await launch(tasks, call(2))
        for queued in range(2 * bound):
            assert (queue.statistics().queued, queue.statistics().running) == (queued, 1)
            await line_up(tasks, call(1))
        full = queue.statistics()
        assert (full.queued, full.rejected) == (2 * bound, 0)
        refusal = await outcome(call(1))
        assert isinstance(refusal, shoal.errors.Overloaded)
        assert f"{2 * bound} requests are waiting" in str(refusal)
        after = queue.statistics()
        assert (after.queued, after.running, after.rejected) == (2 * bound, 1, 1)
        held.gate.set()
    assert queue.statistics().finished == 1 + 2 * bound


async def test_tb10_the_bound_of_a_level_must_be_positive():
    with pytest.raises(ValueError, match="max_queued_requests must be at least 1, not 0"):
        shoal.QueuePolicy(max_queued_requests=0)


async def test_tb12_one_bound_holds_for_the_tasks_of_all_levels(recorder):
    async with shoal.Batcher(recorder, **LEVELS) as call:
        with pytest.raises(shoal.errors.ItemTooLarge, match=r"costs 11, .* max_batch_size=10"):
            await call.options(priority=LOW)(11)
        assert await call.options(priority=LOW)(10) == 10
    assert recorder.batches == [[10]]


def filled(items: list[int], size: int) -> list[int]:
    return items + [1] * (size - sum(items))


TO_8: dict[str, Any] = {"max_batch_size": 16, "allowed_batch_sizes": (2, 8, 16), "pad": filled}
OWN_WAIT = {LOW: shoal.QueuePolicy(batch_wait_timeout_s=1)}


@pytest.mark.parametrize(
    ("sent", "options", "batches", "ran_at"),
    [
        pytest.param(
            [(LOW, 1), (LOW, 3), (LOW, 5)],
            {"max_batch_size": 9},
            [[1, 3, 5]],
            [0],
            id="tb14 low tasks alone run when they are full",
        ),
        pytest.param(
            [(LOW, 1), (LOW, 3), (LOW, 5)],
            {},
            [[1, 3, 5]],
            [1],
            id="tb14 low tasks alone run at the queue's time-out",
        ),
        pytest.param(
            [(LOW, 1), (LOW, 3), (LOW, 5)],
            {"batch_wait_timeout_s": 9, "queue_policies": OWN_WAIT},
            [[1, 3, 5]],
            [1],
            id="tb14 low tasks alone run at their own time-out",
        ),
        pytest.param(
            [(HIGH, 1), (HIGH, 3), (LOW, 3)],
            {},
            [[1, 3, 3]],
            [1],
            id="tb16 the low task that is there fills a high batch",
        ),
        pytest.param(
            [(HIGH, 1), (HIGH, 3), (LOW, 3), (LOW, 3), (LOW, 3)],
            {},
            [[1, 3, 3, 3], [3]],
            [0, 1],
            id="tb16 low tasks fill a high batch up to its bound",
        ),
        pytest.param(
            [(HIGH, 1), (HIGH, 3), (LOW, 2), (LOW, 2), (LOW, 2)],
            {**TO_8, "padding": "down"},
            [[1, 3, 2, 2], [2]],
            [1, 1],
            id="tb17 low tasks fill a high batch to an allowed size",
        ),
        pytest.param(
            [(HIGH, 1), (HIGH, 3), (LOW, 2)],
            TO_8,
            [[1, 3, 2, 1, 1]],
            [1],
            id="tb17 what low tasks can't fill is padded",
        ),
        pytest.param(
            [(HIGH, 1), (HIGH, 3), (LOW, 2), (LOW, 2), (LOW, 2)],
            {},
            [[1, 3, 2, 2, 2]],
            [0],
            id="tb18 without allowed sizes low tasks join while there is room",
        ),
        pytest.param(
            [(HIGH, 1), (HIGH, 3), (LOW, 3), (LOW, 3)],
            {"priority_mixing": "isolate"},
            [[1, 3], [3, 3]],
            [1, 1],
            id="tb19 isolated levels make batches of their own",
        ),
        pytest.param(
            [(LOW, 2), 0.001, (LOW, 3), 0.001, (HIGH, 5)],
            {},
            [[5, 2, 3]],
            [0.002],
            id="tb21 levels that fill a batch together go at once, the high ones first",
        ),
        pytest.param(
            [(LOW, 7), 0.001, (HIGH, 6)],
            {},
            [[6], [7]],
            [0.001, 1],
            id="tb22 a low task that does not fit beside a high one waits",
        ),
        pytest.param(
            [(LOW, 7), 0.001, (HIGH, 6)],
            SPLIT,
            [[3, 3], [7]],
            [0.001, 1],
            id="tb22 with splitting the task that comes last is divided",
        ),
        pytest.param(
            [(LOW, 10), (LOW, 1)], {}, [[10], [1]], [0, 1], id="tb24 a full batch does not wait"
        ),
    ],
)
async def test_tb14_to_tb24_tasks_of_two_levels(sent, options, batches, ran_at, recorder):
    await send(recorder, *sent, **{**LEVELS, **options})
    assert (recorder.batches, recorder.starts) == (batches, ran_at)


async def test_tb23_the_queue_with_the_highest_and_then_the_oldest_task_is_first(held):
    """The queues are buckets of one batcher, since batchers have slots of their own."""
    options = {**LEVELS, "batch_size_fn": lambda task: task[1], "bucket_by": lambda task: task[0]}
    async with shoal.Batcher(held, **options) as call, anyio.create_task_group() as tasks:

        async def put(level: int, *task: int) -> list[Caller]:
            return await line_up(tasks, call.options(priority=level)(task))

        await put(HIGH, 0, 10)
        await settle()
        for level, queue, size in [(LOW, 2, 4), (LOW, 1, 5), (HIGH, 3, 6), (HIGH, 4, 1)]:
            await put(level, queue, size)
            await anyio.sleep(0.001)
        await put(LOW, 4, 2)
        await anyio.sleep(2)
        assert held.batches == [[(0, 10)]]
        held.gate.set()
    assert held.batches[1:] == [[(3, 6)], [(4, 1), (4, 2)], [(2, 4)], [(1, 5)]]


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
