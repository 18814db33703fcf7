"""Readers that leave: the others go on, and when nobody is left the generator is closed.

Equal calls that share a stream: each reads it from its start, for as long as it may.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, Reader, line_up, read, read_all
from batching.scenes import Steps, opening, settle
from batching.sharing_scenes import A_MINUTE, WHOLE, opened, sharing
from shoal.batching.calls.flight import REPLAYED_MOST
from shoal.core.request import State
from shoal.errors import DeadlineExceeded, SlowReader


@asynccontextmanager
async def two_readers(**options: Any) -> AsyncGenerator[tuple[Steps, Any, Reader, Reader]]:
    """Two readers of one batch."""
    with Steps() as steps:
        async with opening(steps.pair(**options)) as (batcher, call, tasks):
            first, second = await read_all(tasks, call("a"), call("b"))
            yield steps, batcher, first, second


async def test_a_reader_that_leaves_frees_its_slot_and_the_other_goes_on() -> None:
    async with two_readers() as (steps, batcher, first, second):
        steps.step(1, 2)
        await settle()
        await first.gone()
        assert [request.cancelled for request in steps.requests] == [True, False]
        assert batcher.statistics().running == 1
        steps.step("dropped", 3)
        steps.end()
    statistics = batcher.statistics()
    assert (first.items, first.outcome) == ([1], LEFT)
    assert (second.items, second.outcome) == ([2, 3], "end")
    assert (statistics.finished, statistics.cancelled, statistics.failed) == (1, 1, 0)


@pytest.mark.parametrize("together", [True, False])
async def test_ru13_tq15_when_the_last_reader_leaves_the_generator_is_closed(
    together: bool,
) -> None:
    async with two_readers() as (steps, batcher, first, second):
        steps.step(1, 2)
        await settle()
        first.leave()
        if not together:
            await settle()
            assert not steps.closed
        await second.gone()
        assert steps.closed
        assert [request.cancelled for request in steps.requests] == [True, True]
        assert batcher.statistics().batches_running == 0
    assert batcher.statistics().cancelled == 2


@pytest.mark.parametrize("how", ["ends", "leaves"])
async def test_when_one_has_ended_and_the_other_ends_or_leaves_the_generator_is_closed(how):
    async with two_readers() as (steps, _, _, second):
        steps.step(shoal.END, 2)
        await settle()
        assert not steps.closed
        if how == "leaves":
            second.leave()
        else:
            steps.step("x", shoal.END)
        await settle()
        assert steps.closed


async def test_without_cancel_abandoned_the_generator_goes_on_to_its_end_for_nobody(steps):
    async with opening(steps.pair(cancel_abandoned=False)) as (_, call, tasks):
        readers = await read_all(tasks, call("a"), call("b"))
        await settle()
        for reader in readers:
            reader.leave()
        await settle()
        assert not steps.closed
        steps.step(1, 2)
        steps.step(1, 2)
        await settle()
        assert steps.made == 2
        steps.end()
    assert steps.closed


@pytest.mark.parametrize("leave_first", [True, False])
@pytest.mark.parametrize("slot", [1, shoal.END], ids=["item", "end"])
async def test_a_reader_may_leave_in_the_tick_in_which_an_item_or_the_end_comes(slot, leave_first):
    async with two_readers() as (steps, batcher, first, second):
        await settle()
        if leave_first:
            first.leave()
        steps.step(slot, 2)
        if not leave_first:
            first.leave()
        await settle()
        assert first.outcome == LEFT or (slot is shoal.END and first.outcome == "end")
        assert (second.items, second.outcome) == ([2], PENDING)
        steps.step(3, 4)
        steps.end()
    statistics = batcher.statistics()
    assert second.items == [2, 4]
    assert statistics.finished + statistics.cancelled == 2
    assert statistics.running == 0


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancelled_wait_for_an_item_loses_nothing(cancel_first: bool, steps: Steps) -> None:
    got: list[Any] = []
    scope = anyio.CancelScope()
    async with (
        shoal.Batcher(steps.handler) as call,
        call("a") as stream,
        anyio.create_task_group() as tasks,
    ):

        async def read_one() -> None:
            with scope:
                got.append(await anext(stream))

        tasks.start_soon(read_one)
        await settle()
        if cancel_first:
            scope.cancel()
        steps.step(1)
        if not cancel_first:
            scope.cancel()
        await settle()
        steps.step(2)
        steps.end()
        rest = [item async for item in stream]
    assert got + rest == [1, 2]


@pytest.mark.parametrize("how", ["breaks", "raises"])
async def test_a_reader_that_breaks_out_of_its_block_leaves_the_stream(how, steps):
    batcher = shoal.Batcher(steps.handler)
    async with batcher as call:
        steps.step(1)
        with suppress(LookupError):
            async with call("a") as stream:
                async for item in stream:
                    assert item == 1
                    if how == "raises":
                        raise LookupError
                    break
        await settle()
        assert steps.closed
        assert batcher.statistics().cancelled == 1


async def test_leaving_while_the_handler_is_held_by_this_reader_lets_it_go_on(steps: Steps) -> None:
    batcher = steps.pair(stream_buffer=1, slow_reader_timeout_s=None)
    async with opening(batcher) as (_, call, tasks):
        slow = call("slow")
        await slow.__aenter__()
        (fast,) = await read_all(tasks, call("fast"))
        for number in range(3):
            steps.step(number, number)
        await settle()
        assert fast.items == [0]
        await slow.aclose()
        await settle()
        assert fast.items == [0, 1, 2]
        steps.end()


async def read_one(stream: Any) -> Any:
    async for item in stream:
        return item
    raise AssertionError("there was none")


@pytest.mark.filterwarnings("ignore:a stream of")
async def test_a_stream_that_is_broken_off_and_dropped_frees_its_place_at_once(steps):
    batcher = shoal.Batcher(steps.handler, max_batch_size=1, slow_reader_timeout_s=None)
    async with batcher as call:
        steps.step("first")
        assert await read_one(call("a")) == "first"
        await settle()
        assert steps.closed
        assert batcher.statistics().running == 0
        assert batcher.statistics().cancelled == 1
        steps.step("second")
        async with call("b") as stream:
            assert await anext(stream) == "second"


@pytest.mark.filterwarnings("ignore:a stream of")
async def test_a_dropped_stream_that_waits_in_the_queue_leaves_it(steps: Steps) -> None:
    async with shoal.Batcher(steps.handler, max_batch_size=1) as call, call("a"):
        stream = await call("b").__aenter__()
        assert stream.request.state is State.QUEUED
        request = stream.request
        del stream
        await settle()
        assert request.state is State.CANCELLED


@pytest.mark.filterwarnings("ignore:a stream of")
async def test_a_dropped_stream_no_longer_holds_back_the_others_of_its_batch(steps: Steps) -> None:
    batcher = steps.pair(stream_buffer=1, slow_reader_timeout_s=None)
    async with opening(batcher) as (_, call, tasks):
        dropped = await call("a").__aenter__()
        (reader,) = await read_all(tasks, call("b"))
        for number in range(3):
            steps.step(number, number)
        await settle()
        assert reader.items == [0]
        del dropped
        await settle()
        assert reader.items == [0, 1, 2]
        steps.end()


async def test_a_stream_that_was_never_entered_is_dropped_without_a_trace(steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler)
    async with batcher as call:
        call("a")
        await settle()
        assert batcher.statistics().cancelled == 0


async def endless(items: list[int]) -> AsyncIterator[list[int]]:
    while True:
        yield items
        await anyio.lowlevel.checkpoint()


@pytest.mark.real_time
@pytest.mark.filterwarnings("ignore:a stream of")
async def test_a_stream_that_a_thread_drops_frees_its_place() -> None:
    batcher = shoal.Batcher(endless, max_batch_size=1, slow_reader_timeout_s=None)

    def read(item: int) -> int:
        return next(call.from_thread(item).__enter__())

    async with batcher as call:
        with anyio.fail_after(5):
            for item in range(3):
                assert await anyio.to_thread.run_sync(read, item) == item


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.filterwarnings("ignore:a stream of")
def test_a_stream_of_a_blocking_call_that_is_dropped_frees_its_place(backend: str) -> None:
    options: Any = {"slow_reader_timeout_s": None, "max_queued_requests": 1}
    batcher = shoal.Batcher(endless, max_batch_size=1, **options)
    with shoal.blocking(batcher, backend=backend) as call:
        for item in range(3):
            assert next(call(item).__enter__()) == item


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.filterwarnings("ignore:a stream of")
def test_a_stream_may_be_dropped_after_its_event_loop_has_ended(backend: str) -> None:
    kept: list[Any] = []

    async def main() -> None:
        with Steps() as steps:
            batcher = shoal.Batcher(steps.handler, graceful_shutdown_timeout_s=0)
            async with batcher as call:
                stream = call("a")
                await stream.__aenter__()
                kept.append(stream)

    anyio.run(main, backend=backend)
    kept.clear()


async def test_a_generator_that_is_left_between_two_steps_has_time_to_clean_up() -> None:
    cleaned_up: list[bool] = []

    async def handler(items: list[Any]) -> AsyncIterator[list[Any]]:
        try:
            while True:
                yield items
        finally:
            await anyio.sleep(1)
            cleaned_up.append(True)

    options: dict[str, Any] = {"stream_buffer": 1, "slow_reader_timeout_s": None}
    async with shoal.Batcher(handler, **options) as call, call("x") as stream:
        assert await anext(stream) == "x"
        await settle()  # the handler waits for its reader
    assert cleaned_up == [True]


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
    slow_s: Any = {"stream_buffer": 1, "slow_reader_timeout_s": 2}
    async with sharing("steps", calls=2, **slow_s) as (_, _, call, tasks), call("a") as slow:
        (quick,) = await line_up(tasks, read(call("a")))
        await anyio.sleep(20)
        assert await anext(slow) == "a.0"
        with pytest.raises(SlowReader):
            await anext(slow)
    assert quick.outcome == WHOLE


async def test_a_lone_slow_reader_ends_the_stream():
    slow_s: Any = {"stream_buffer": 1, "slow_reader_timeout_s": 2}
    async with sharing("steps", calls=1, **slow_s) as (handler, _, call, _), call("a") as slow:
        await anyio.sleep(20)
        assert handler.cancelled == 1
        with pytest.raises(SlowReader):
            async for _ in slow:
                pass


async def test_a_slow_reader_that_reads_again_goes_on():
    slow_s: Any = {"stream_buffer": 1, "slow_reader_timeout_s": 5}
    async with sharing("steps", calls=2, **slow_s) as (_, _, call, tasks), call("a") as slow:
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

    async with opening(opened(handler, fill=fill, streams=streams)) as (_, call, tasks):
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
