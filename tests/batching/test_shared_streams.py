"""Equal calls that share a stream: each reads it from its start, for as long as it may."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import line_up, read, using
from batching.sharing_scenes import A_MINUTE, WHOLE, opened, sharing
from shoal.batching.calls.flight import REPLAYED_MOST
from shoal.errors import DeadlineExceeded, SlowReader


async def test_readers_share_a_stream_from_its_start():
    async with sharing("steps", calls=3) as (handler, batcher, call, tasks):
        first = await line_up(tasks, read(call("a")), read(call("a")))
        await anyio.sleep(2.5)
        later = await line_up(tasks, read(call("a")))
    assert [one.outcome for one in (*first, *later)] == [WHOLE] * 3
    assert {one.ended_at for one in (*first, *later)} == {4.0}
    assert handler.items == ["a"]
    assert batcher.statistics().shared == 2


async def test_a_reader_may_leave_while_it_is_passed_an_item():
    got = []
    async with sharing("steps", calls=2) as (_, _, call, tasks), call("a") as leaves:

        def take(item: str) -> bool:
            got.append(item)
            leaves.leave()
            return True

        leaves.pass_on(take)
        (stays,) = await line_up(tasks, read(call("a")))
        assert [item async for item in leaves] == []
    assert got == ["a.0"]
    assert stays.outcome == WHOLE


async def test_a_slow_reader_fails_alone():
    async with (
        sharing("steps", calls=2, stream_buffer=1, slow_reader_timeout_s=2) as (_, _, call, tasks),
        call("a") as slow,
    ):
        (quick,) = await line_up(tasks, read(call("a")))
        await anyio.sleep(20)
        assert await anext(slow) == "a.0"
        with pytest.raises(SlowReader):
            await anext(slow)
    assert quick.outcome == WHOLE


async def test_a_lone_slow_reader_ends_the_stream():
    async with (
        sharing("steps", calls=1, stream_buffer=1, slow_reader_timeout_s=2) as (
            handler,
            _,
            call,
            _,
        ),
        call("a") as slow,
    ):
        await anyio.sleep(20)
        assert handler.cancelled == 1
        with pytest.raises(SlowReader):
            async for _ in slow:
                pass


async def test_a_slow_reader_that_reads_again_goes_on():
    async with (
        sharing("steps", calls=2, stream_buffer=1, slow_reader_timeout_s=5) as (_, _, call, tasks),
        call("a") as slow,
    ):
        (quick,) = await line_up(tasks, read(call("a")))
        await anyio.sleep(3)
        assert [item async for item in slow] == WHOLE
    assert quick.outcome == WHOLE


async def test_a_whole_stream_is_kept():
    async with sharing("steps", calls=3, cache=A_MINUTE) as (handler, _, call, _):
        assert await read(call("a")) == WHOLE
        started = anyio.current_time()
        assert await read(call("a")) == WHOLE
        assert await read(call("a"), most=1) == WHOLE[:1]
        assert anyio.current_time() == started
    assert handler.items == ["a"]


async def test_a_long_stream_is_not_joined_late():
    begun = []

    async def long(items: list[str]) -> Any:
        begun.append(items)
        for nth in range(REPLAYED_MOST + 10):
            await anyio.sleep(1)
            yield [nth] * len(items)

    batcher = opened(long, max_concurrent_batches=2, cache=shoal.Cache(max_size=9, ttl_s=1e6))
    async with batcher as call, anyio.create_task_group() as tasks:
        first = await line_up(tasks, read(call("a")))
        await anyio.sleep(REPLAYED_MOST - 0.5)
        joined = await line_up(tasks, read(call("a")))
        await anyio.sleep(3)
        late = await line_up(tasks, read(call("a")))
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

    async with using(opened(handler, fill=fill, streams=streams)) as (call, tasks):
        calls = [read(call(item)) if streams else call(item) for item in "aab"]
        callers = await line_up(tasks, *calls)
    assert sorted(items) == ["a", "b"]
    expected = ["a.0", "a.1"] if streams else ("result", "a")
    assert [one.outcome for one in callers[:2]] == [expected] * 2


async def test_the_deadline_of_a_reader_who_comes_later_counts_from_its_call():
    async with sharing("steps", calls=3) as (_, _, call, tasks):
        (first,) = await line_up(tasks, read(call("a")))
        await anyio.sleep(1.5)
        late, well = await line_up(
            tasks, read(call.options(timeout_s=2)("a")), read(call.options(timeout_s=3)("a"))
        )
    assert [first.outcome, well.outcome] == [WHOLE, WHOLE]
    assert late.outcome[:3] == WHOLE[:3]
    assert type(late.outcome[3]) is DeadlineExceeded
    assert late.ended_at == 3.5
