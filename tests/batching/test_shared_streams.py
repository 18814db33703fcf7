"""Equal calls that share a stream: each reads it from its start, for as long as it may."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import line_up, settle
from batching.sharing_scenes import WHOLE, Second, balanced, opened, read
from shoal.batching.calls.flight import REPLAYED_MOST
from shoal.errors import DeadlineExceeded, SlowReader

pytestmark = pytest.mark.anyio


async def test_readers_share_a_stream_from_its_start():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        first = await line_up(tasks, read(call, "a"), read(call, "a"))
        await anyio.sleep(2.5)
        later = await line_up(tasks, read(call, "a"))
    assert [one.outcome for one in (*first, *later)] == [WHOLE] * 3
    assert {one.ended_at for one in (*first, *later)} == {4.0}
    assert handler.items == ["a"]
    assert batcher.statistics().shared == 2
    balanced(batcher, 3)


async def test_a_reader_that_leaves_takes_the_stream_from_nobody():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        one, other = await line_up(tasks, read(call, "a", most=1), read(call, "a"))
    assert one.outcome == ["a.0"]
    assert other.outcome == WHOLE
    assert handler.cancelled == 0
    balanced(batcher, 2)


async def test_the_last_reader_that_leaves_closes_the_stream():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            await line_up(tasks, read(call, "a", most=1), read(call, "a", most=2))
        await settle()
        assert handler.cancelled == 1
    balanced(batcher, 2)


async def test_an_error_in_mid_stream_is_shared_after_the_items():
    handler = Second()
    batcher = opened(handler.steps, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, read(call, "bad"), read(call, "bad"))
    for caller in callers:
        assert caller.outcome[:2] == ["bad.0", "bad.1"]
        assert type(caller.outcome[2]) is ValueError
    assert callers[0].outcome[2] is not callers[1].outcome[2]
    balanced(batcher, 2)


async def test_a_slow_reader_fails_alone():
    handler = Second()
    batcher = opened(handler.steps, stream_buffer=1, slow_reader_timeout_s=2)
    async with batcher as call, anyio.create_task_group() as tasks, call("a") as slow:
        (quick,) = await line_up(tasks, read(call, "a"))
        await anyio.sleep(20)
        assert await anext(slow) == "a.0"
        with pytest.raises(SlowReader):
            await anext(slow)
    assert quick.outcome == WHOLE
    balanced(batcher, 2)


async def test_a_lone_slow_reader_ends_the_stream():
    handler = Second()
    batcher = opened(handler.steps, stream_buffer=1, slow_reader_timeout_s=2)
    async with batcher as call, call("a") as slow:
        await anyio.sleep(20)
        assert handler.cancelled == 1
        with pytest.raises(SlowReader):
            async for _ in slow:
                pass
    balanced(batcher, 1)


async def test_a_slow_reader_that_reads_again_goes_on():
    handler = Second()
    batcher = opened(handler.steps, stream_buffer=1, slow_reader_timeout_s=5)
    async with batcher as call, anyio.create_task_group() as tasks, call("a") as slow:
        (quick,) = await line_up(tasks, read(call, "a"))
        await anyio.sleep(3)
        assert [item async for item in slow] == WHOLE
    assert quick.outcome == WHOLE
    balanced(batcher, 2)


async def test_a_whole_stream_is_kept():
    handler = Second()
    batcher = opened(handler.steps, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call:
        assert await read(call, "a") == WHOLE
        started = anyio.current_time()
        assert await read(call, "a") == WHOLE
        assert await read(call, "a", most=1) == WHOLE[:1]
        assert anyio.current_time() == started
    assert handler.items == ["a"]
    balanced(batcher, 3)


async def test_a_long_stream_is_not_joined_late():
    begun = []

    async def long(items: list[str]) -> Any:
        begun.append(items)
        for nth in range(REPLAYED_MOST + 10):
            await anyio.sleep(1)
            yield [nth] * len(items)

    batcher = opened(long, max_concurrent_batches=2, cache=shoal.Cache(max_size=9, ttl_s=1e6))
    async with batcher as call, anyio.create_task_group() as tasks:
        first = await line_up(tasks, read(call, "a"))
        await anyio.sleep(REPLAYED_MOST - 0.5)
        joined = await line_up(tasks, read(call, "a"))
        await anyio.sleep(3)
        late = await line_up(tasks, read(call, "a"))
    assert len(begun) == 2
    for one in (*first, *joined, *late):
        assert one.outcome == list(range(REPLAYED_MOST + 10))


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize("streams", [False, True])
async def test_requests_of_open_batches_are_shared(fill, streams):
    items = []

    async def handler(batch: Any) -> None:
        async for request in batch:
            items.append(request.item)
            await anyio.sleep(1)
            if streams:
                for nth in range(2):
                    await request.send(f"{request.item}.{nth}")
                request.finish()
            else:
                request.finish(("result", request.item))

    batcher = opened(handler, fill=fill, streams=streams)
    async with batcher as call, anyio.create_task_group() as tasks:
        make = partial(read, call) if streams else call
        callers = await line_up(tasks, make("a"), make("a"), make("b"))
    assert sorted(items) == ["a", "b"]
    expected = ["a.0", "a.1"] if streams else ("result", "a")
    assert [one.outcome for one in callers[:2]] == [expected] * 2


@pytest.mark.parametrize(("first_s", "other_s"), [(2.5, 9), (9, 2.5), (2.5, None)])
async def test_deadlines_are_each_readers_own(first_s, other_s):
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        one, other = await line_up(
            tasks,
            read(call.options(timeout_s=first_s), "a"),
            read(call.options(timeout_s=other_s), "a"),
        )
    late, well = (one, other) if first_s == 2.5 else (other, one)
    assert late.outcome[:2] == WHOLE[:2]
    assert [type(item) for item in late.outcome[2:]] == [DeadlineExceeded]
    assert late.ended_at == 2.5
    assert well.outcome == WHOLE
    assert handler.items == ["a"]
    assert handler.cancelled == 0
    assert batcher.statistics().expired == 1
    balanced(batcher, 2)


async def test_the_deadline_of_a_reader_who_comes_later_counts_from_its_call():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        (first,) = await line_up(tasks, read(call, "a"))
        await anyio.sleep(1.5)
        late, well = await line_up(
            tasks,
            read(call.options(timeout_s=2), "a"),
            read(call.options(timeout_s=3), "a"),
        )
    assert [first.outcome, well.outcome] == [WHOLE, WHOLE]
    assert late.outcome[:3] == WHOLE[:3]
    assert type(late.outcome[3]) is DeadlineExceeded
    assert late.ended_at == 3.5
    balanced(batcher, 3)


async def test_when_all_readers_are_too_late_the_stream_is_closed():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        readers = await line_up(
            tasks,
            read(call.options(timeout_s=1.5), "a"),
            read(call.options(timeout_s=2.5), "a"),
        )
        await anyio.sleep(2)
        assert handler.cancelled == 0
        await anyio.sleep(1)
        assert handler.cancelled == 1
    assert [len(reader.outcome) for reader in readers] == [1 + 1, 2 + 1]
    assert batcher.statistics().expired == 2
    balanced(batcher, 2)


async def test_time_in_the_queue_is_each_readers_own():
    handler = Second()
    batcher = opened(handler.steps, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, read(call, "x"))
        one, other = await line_up(
            tasks, read(call, "a"), read(call.options(queue_timeout_s=0.5), "a")
        )
    assert [type(item) for item in other.outcome] == [DeadlineExceeded]
    assert one.outcome == WHOLE
    balanced(batcher, 3)
