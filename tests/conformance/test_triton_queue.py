"""What Triton's tests of queue policies, cancellation and streams assert (group TQ, up to TQ15)."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Recorder, line_up, settle

SIZES: dict[str, Any] = {"max_batch_size": 8, "batch_size_fn": lambda size: size}


@pytest.mark.parametrize(
    "bound",
    [
        {"max_queued_requests": 8},
        {"default_queue_policy": shoal.QueuePolicy(max_queued_requests=8)},
    ],
    ids=["the line's", "the level's"],
)
async def test_tq1_what_is_beyond_the_bound_is_refused_at_once(bound):
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(5)
        return items

    batcher = shoal.Batcher(handler, max_batch_size=1, **bound)
    async with batcher as call, anyio.create_task_group() as tasks:
        started = anyio.current_time()
        callers = await line_up(tasks, call(0))
        await settle()
        callers += await line_up(tasks, *map(call, range(1, 11)))
        await settle()
        refused, served = callers[9:], callers[:9]
        assert [type(caller.outcome) for caller in refused] == [shoal.errors.Overloaded] * 2
        assert [caller.ended_at for caller in refused] == [started] * 2
    assert [caller.outcome for caller in served] == list(range(9))
    assert batcher.statistics().rejected == 2


async def test_tq3_what_waits_for_too_long_is_rejected_and_counted(recorder):
    batcher = shoal.Batcher(
        recorder,
        **SIZES,
        preferred_batch_sizes=(4,),
        batch_wait_timeout_s=10,
        default_queue_policy=shoal.QueuePolicy(timeout_s=0.1),
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        (late,) = await line_up(tasks, call(1))
        await anyio.sleep(0.2)
        others = await line_up(tasks, call(1), call(2), call(1))
    assert isinstance(late.outcome, shoal.errors.DeadlineExceeded)
    assert "waited in the queue for longer than its timeout" in str(late.outcome)
    assert late.ended_at == pytest.approx(0.1)
    assert [caller.outcome for caller in others] == [1, 2, 1]
    assert [caller.ended_at for caller in others] == [pytest.approx(0.2)] * 3
    assert recorder.batches == [[1, 2, 1]]
    statistics = batcher.statistics()
    assert (statistics.expired, statistics.rejected, statistics.finished) == (1, 0, 3)


async def two_levels(urgent: int | None, usual: int | None, **options: Any) -> None:
    """A call of the highest level joins the first batch in place of one that came before it."""
    handler = Recorder()
    options = {"preferred_batch_sizes": (4,), "batch_wait_timeout_s": 10, **options}
    async with shoal.Batcher(handler, **SIZES, **options) as call:
        started = anyio.current_time()
        usually = call if usual is None else call.options(priority=usual)
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, usually(2), usually(1))
            await anyio.sleep(0.2)
            callers += await line_up(tasks, call.options(priority=urgent)(2))
    assert [caller.outcome for caller in callers] == [2, 1, 2]
    waits = [round(caller.ended_at - started, 6) for caller in callers if caller.ended_at]
    assert waits == [0.2, 10, 0.2]
    assert handler.batches == [[2, 2], [1]]


async def test_tq5_a_higher_level_joins_the_first_batch():
    await two_levels(urgent=1, usual=2, priority_levels=2)


@pytest.mark.parametrize("aging_s", [None, 10.0])
async def test_tq6_levels_may_be_as_many_as_fit_in_64_bits(aging_s):
    await two_levels(
        urgent=1,
        usual=None,
        priority_levels=2**64 - 1,
        default_priority=2**32,
        priority_aging_s=aging_s,
    )


async def test_tq11_leaving_many_calls_is_one_cancellation(held):
    batcher = shoal.Batcher(held, max_batch_size=4)
    endings: list[BaseException] = []

    async with batcher as call, anyio.create_task_group() as tasks:

        async def ask_all() -> None:
            try:
                await call.map(range(32))
            except BaseException as ending:
                endings.append(ending)
                raise

        tasks.start_soon(ask_all)
        await settle()
        tasks.cancel_scope.cancel()
    assert [type(ending) for ending in endings] == [anyio.get_cancelled_exc_class()]
    statistics = batcher.statistics()
    assert (statistics.cancelled, statistics.queued, statistics.running) == (32, 0, 0)
    assert held.batches == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("starts", "paces", "together"),
    [
        pytest.param((0, 1), (2, 2), [0, 1, 2, 3, 4, 5, 6, 7], id="they take turns"),
        pytest.param((1, 0), (2, 2), [1, 0, 3, 2, 5, 4, 7, 6], id="the second is ahead"),
        pytest.param((5, 0), (2, 1), [1, 3, 5, 7, 0, 2, 4, 6], id="the second is fast"),
        pytest.param((0, 5), (1, 2), [0, 2, 4, 6, 1, 3, 5, 7], id="the second is slow"),
        pytest.param((0, 3), (2, 2), [0, 2, 1, 4, 3, 6, 5, 7], id="the second comes later"),
    ],
)
async def test_tq14_streams_keep_their_own_order_and_pace(starts, paces, together):
    async def numbers(items: list[int]) -> AsyncIterator[list[int]]:
        (first,) = items
        await anyio.sleep(starts[first])
        for place in range(4):
            yield [first + 2 * place]
            await anyio.sleep(paces[first])

    arrived: list[int] = []
    async with shoal.Batcher(numbers, max_batch_size=1, max_concurrent_batches=2) as call:

        async def read(first: int) -> None:
            async with call(first) as stream:
                mine = []
                async for item in stream:
                    mine.append(item)
                    arrived.append(item)
            assert mine == [first, first + 2, first + 4, first + 6]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, 0)
            tasks.start_soon(read, 1)
    assert arrived == together


async def test_tq15_a_stream_is_no_answer_to_await(steps):
    async with shoal.Batcher(steps.handler) as call:
        with pytest.raises(TypeError):
            await call(1)
    assert steps.batches == []
