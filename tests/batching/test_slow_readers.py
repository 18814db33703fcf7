"""Slow readers: a bounded buffer, and a bounded time for which one may hold back its batch."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Steps, read_all, settle


def pair_of(steps: Steps, **options: Any) -> Any:
    return shoal.Batcher(steps.handler, batch_wait_timeout_s=1, max_batch_size=2, **options)


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_the_handler_is_held_back_while_a_buffer_is_full(size: int) -> None:
    with Steps() as steps:
        async with (
            shoal.Batcher(steps.handler, stream_buffer=size, slow_reader_timeout_s=None) as call,
            call("a") as stream,
        ):
            for number in range(10):
                steps.step(number)
            steps.end()
            await settle()
            assert steps.made == size
            assert await anext(stream) == 0
            await settle()
            assert steps.made == size + 1
            assert [item async for item in stream] == list(range(1, 10))


async def test_a_reader_that_is_too_slow_fails_alone_after_the_items_it_has() -> None:
    with Steps() as steps:
        batcher = pair_of(steps, stream_buffer=2, slow_reader_timeout_s=5)
        async with batcher as call, anyio.create_task_group() as tasks, call("slow") as slow:
            (fast,) = await read_all(tasks, call("fast"))
            for number in range(4):
                steps.step(number, number)
            started = anyio.current_time()
            await anyio.sleep(4.5)
            assert fast.items == [0, 1]
            await anyio.sleep(1)
            assert fast.items == [0, 1, 2, 3]
            assert steps.requests[0].cancelled
            steps.end()
            assert [await anext(slow), await anext(slow)] == [0, 1]
            with pytest.raises(shoal.errors.SlowReader, match="5") as caught:
                await anext(slow)
            assert isinstance(caught.value, TimeoutError)
            assert anyio.current_time() - started == pytest.approx(5.5)
    assert fast.outcome == "end"
    assert (batcher.statistics().failed, batcher.statistics().finished) == (1, 1)


async def test_a_reader_may_hold_its_batch_back_for_that_long_in_all() -> None:
    with Steps() as steps:
        async with (
            shoal.Batcher(steps.handler, stream_buffer=1, slow_reader_timeout_s=5) as call,
            call("a") as stream,
        ):
            for number in range(10):
                steps.step(number)
            got = []
            with pytest.raises(shoal.errors.SlowReader):  # noqa: PT012
                while True:
                    await anyio.sleep(2)
                    got.append(await anext(stream))
            assert got == [0, 1, 2]


async def test_the_allowance_is_whole_again_once_the_reader_has_caught_up() -> None:
    with Steps() as steps:
        async with (
            shoal.Batcher(steps.handler, stream_buffer=1, slow_reader_timeout_s=5) as call,
            call("a") as stream,
        ):
            for number in range(5):
                steps.step(number)
                await anyio.sleep(4)
                assert await anext(stream) == number
                with anyio.move_on_after(1):
                    await anext(stream)
            steps.end()
            assert [item async for item in stream] == []


async def test_two_slow_readers_fail_each_with_an_error_of_its_own() -> None:
    with Steps() as steps:
        batcher = pair_of(steps, stream_buffer=1, slow_reader_timeout_s=5)
        async with batcher as call, call("a") as first, call("b") as second:
            steps.step(1, 2)
            await anyio.sleep(6.5)
            assert steps.closed
            errors = []
            for stream in (first, second):
                await anext(stream)
                with pytest.raises(shoal.errors.SlowReader) as caught:
                    await anext(stream)
                errors.append(caught.value)
            assert errors[0] is not errors[1]


async def test_the_time_that_one_reader_holds_is_not_charged_to_another() -> None:
    with Steps() as steps:
        batcher = pair_of(steps, stream_buffer=2, slow_reader_timeout_s=5)
        async with batcher as call, call("slow") as slow, call("other") as other:
            for number in range(4):
                steps.step(number, number)
            await anyio.sleep(1.5)  # both have a full buffer, and neither has caught up
            assert await anext(other) == 0
            await anyio.sleep(6)
            assert [await anext(other) for _ in range(3)] == [1, 2, 3]
            assert [await anext(slow), await anext(slow)] == [0, 1]
            with pytest.raises(shoal.errors.SlowReader):
                await anext(slow)
            steps.end()


async def test_reading_in_the_tick_in_which_the_time_is_up_loses_nothing() -> None:
    with Steps() as steps:
        batcher = shoal.Batcher(steps.handler, stream_buffer=1, slow_reader_timeout_s=5)
        async with batcher as call, call("a") as stream:
            steps.step(1)
            steps.step(2)
            steps.end()
            await settle()
            await anyio.sleep(5)
            got = []
            try:
                got += [item async for item in stream]
            except shoal.errors.SlowReader:
                assert got == []
            else:
                assert got == [1, 2]
        statistics = batcher.statistics()
        assert statistics.finished + statistics.failed == 1
