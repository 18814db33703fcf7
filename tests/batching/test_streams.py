"""Streams: each step has one slot for each request, and each reader sees its own slots only."""

import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import PENDING, Reader, read_all
from batching.scenes import OfUnhashableKind, Steps, opening, settle


async def count(items: list[int]) -> AsyncIterator[list[Any]]:
    """Gives to each item as many numbers as it says."""
    for number in range(max(items, default=0)):
        yield [number if number < item else shoal.END for item in items]


def count_in_thread(items: list[int]) -> Iterator[list[Any]]:
    for number in range(max(items)):
        yield [number if number < item else shoal.END for item in items]


async def readers_of(steps: list[Any], readers: int = 2) -> list[Reader]:
    """Reads the streams of a batch whose handler makes these steps, or fails, and then ends."""
    with Steps() as made:
        batcher = shoal.Batcher(made.handler, batch_wait_timeout_s=1, max_batch_size=readers)
        async with batcher as call, anyio.create_task_group() as tasks:
            reading = await read_all(tasks, *map(call, range(readers)))
            for step in steps:
                made.fail(step) if isinstance(step, Exception) else made.step(*step)
            made.end()
    assert made.batches == [list(range(readers))]
    assert made.closed
    return reading


class Counting:
    async def __call__(self, items: list[int]) -> AsyncIterator[list[Any]]:
        async for step in count(items):
            yield step


@pytest.mark.real_time
@pytest.mark.parametrize("handler", [count, count_in_thread, Counting()])
async def test_each_reader_gets_its_own_items_in_order(handler: Any) -> None:
    async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
        readers = await read_all(tasks, *map(call, (0, 1, 3, 5)))
    assert [reader.items for reader in readers] == [[], [0], [0, 1, 2], [0, 1, 2, 3, 4]]
    assert [reader.outcome for reader in readers] == ["end"] * 4


async def test_items_arrive_as_they_are_made(steps: Steps) -> None:
    async with shoal.Batcher(steps.handler) as call, call("a") as stream:
        for number in range(3):
            steps.step(number)
            assert await anext(stream) == number
            assert steps.made == number + 1
        steps.end()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("mark", [shoal.END, StopIteration, StopAsyncIteration])
async def test_an_end_mark_ends_that_stream_alone(mark: Any, steps: Steps) -> None:
    async with opening(steps.handler, batch_wait_timeout_s=1, max_batch_size=2) as (_, call, tasks):
        first, second = await read_all(tasks, call("a"), call("b"))
        steps.step(1, 2)
        steps.step(mark, 3)
        steps.step("dropped", 4)
        await settle()
        assert (first.items, first.outcome) == ([1], "end")
        assert (second.items, second.outcome) == ([2, 3, 4], PENDING)
        steps.end()
    assert second.outcome == "end"


class Lookalike:
    """Equal to everything."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


async def test_end_marks_are_compared_by_identity() -> None:
    lookalike = Lookalike()
    (reader,) = await readers_of([(lookalike,), ("END",)], readers=1)
    assert reader.items[0] is lookalike
    assert reader.items[1] == "END"


@pytest.mark.parametrize("value", [None, 0, "", [], {"unhashable": []}, OfUnhashableKind()])
async def test_any_value_is_an_item(value: Any) -> None:
    (reader,) = await readers_of([(value,)], readers=1)
    assert reader.items == [value]


async def test_skip_gives_nothing_in_this_step() -> None:
    first, second = await readers_of([(shoal.SKIP, 1), (2, shoal.SKIP)])
    assert [first.items, second.items] == [[2], [1]]


async def test_an_exception_in_a_slot_fails_that_stream_alone_after_its_items() -> None:
    first, second = await readers_of([(1, 2), (KeyError("mine"), 3), ("dropped", 4)])
    assert first.items == [1]
    assert isinstance(first.outcome, KeyError)
    assert (second.items, second.outcome) == ([2, 3, 4], "end")


async def test_one_exception_in_two_slots_is_not_shared() -> None:
    shared = ValueError("both")
    first, second = await readers_of([(shared, shared)])
    assert isinstance(first.outcome, ValueError)
    assert isinstance(second.outcome, ValueError)
    assert first.outcome is not second.outcome


async def test_when_the_generator_raises_the_open_streams_fail_after_the_items_they_have() -> None:
    original = OSError(5, "broken")
    ended, *failed = await readers_of([(shoal.END, 1, 2), (0, 3, 4), original], readers=3)
    assert (ended.items, ended.outcome) == ([], "end")
    assert [reader.items for reader in failed] == [[1, 3], [2, 4]]
    errors = [reader.outcome for reader in failed]
    assert [type(error) for error in errors] == [OSError, OSError]
    assert errors[0] is not errors[1]
    assert all(error.__cause__ is original for error in errors)


@pytest.mark.parametrize("slots", [(), (1,), (1, 2, 3)])
async def test_a_step_of_a_wrong_length_fails_the_open_streams_with_both_numbers(slots):
    readers = await readers_of([(1, 2), slots])
    for reader in readers:
        assert type(reader.outcome) is shoal.errors.WrongBatchSize
        assert (reader.outcome.expected, reader.outcome.got) == (2, len(slots))
    assert [reader.items for reader in readers] == [[1], [2]]


async def test_items_that_were_not_read_in_time_come_before_the_error_and_it_is_raised_once(steps):
    async with shoal.Batcher(steps.handler) as call, call("a") as stream:
        steps.step(1)
        steps.step(2)
        steps.fail(ValueError("after"))
        await settle()
        assert steps.closed
        assert [await anext(stream), await anext(stream)] == [1, 2]
        with pytest.raises(ValueError, match="after"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_bad_call_is_a_type_error_when_it_is_entered() -> None:
    async with shoal.Batcher(count) as call:
        for wrong in (call(), call(1, 2)):
            with pytest.raises(TypeError):
                await wrong.__aenter__()


async def test_the_request_is_made_on_entering() -> None:
    batcher = shoal.Batcher(count, batch_wait_timeout_s=None)
    async with batcher as call:
        stream = call(1)
        assert stream.request is None
        assert batcher.statistics().queued == 0
        async with stream:
            assert stream.request.item == 1
            assert batcher.statistics().queued == 1


async def test_an_unclosed_stream_warns() -> None:
    async with shoal.Batcher(count, batch_wait_timeout_s=None) as call:
        stream = call(3)
        await stream.__aenter__()
        with pytest.warns(ResourceWarning, match="async with f"):  # noqa: PT031
            del stream
            gc.collect()


async def test_a_stream_that_was_closed_before_it_was_read_or_entered_makes_no_call() -> None:
    batcher = shoal.Batcher(count)
    async with batcher as call:
        stream = call(3)
        await stream.aclose()
        assert [item async for item in stream] == []
        async with stream:
            await settle()
    assert batcher.statistics().finished == 0


async def test_two_tasks_can_not_read_one_stream(steps: Steps) -> None:
    async with shoal.Batcher(steps.handler) as call, anyio.create_task_group() as tasks:
        (reader,) = await read_all(tasks, call("a"))
        await settle()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(reader.stream)
        steps.step(1)
        steps.end()
    assert reader.items == [1]


async def test_reading_is_a_checkpoint_even_when_items_are_there() -> None:
    async with shoal.Batcher(count) as call, call(3) as stream:
        assert await anext(stream) == 0
        await settle()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(stream)
        assert scope.cancelled_caught
        assert [item async for item in stream] == [1, 2]


async def test_an_item_that_is_not_passed_on_yet_comes_before_the_end(steps: Steps) -> None:
    passed_on: list[int] = []
    async with (
        shoal.Batcher(steps.handler) as call,
        call("x") as stream,
        anyio.create_task_group() as tasks,
    ):
        stream.pass_on(lambda item: passed_on.append(item) is None)
        (reader,) = await read_all(tasks, stream)
        steps.step(1)
        await settle()
        assert stream.request is not None
        stream.request.waiter.items.append(2)
        steps.end()
    assert passed_on == [1]
    assert reader.items == [2]
    assert reader.outcome == "end"


# Slow readers: a bounded buffer, and a bounded time for which one may hold back its batch


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_the_handler_is_held_back_while_a_buffer_is_full(size: int, steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler, stream_buffer=size, slow_reader_timeout_s=None)
    async with batcher as call, call("a") as stream:
        for number in range(10):
            steps.step(number)
        steps.end()
        await settle()
        assert steps.made == size
        assert await anext(stream) == 0
        await settle()
        assert steps.made == size + 1
        assert [item async for item in stream] == list(range(1, 10))


async def test_a_reader_that_is_too_slow_fails_alone_after_the_items_it_has(steps: Steps) -> None:
    batcher = steps.pair(stream_buffer=2, slow_reader_timeout_s=5)
    async with batcher as call, anyio.create_task_group() as tasks, call("slow") as slow:
        (fast,) = await read_all(tasks, call("fast"))
        for number in range(4):
            steps.step(number, number)
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
        assert anyio.current_time() == pytest.approx(5.5)
    assert fast.outcome == "end"
    assert (batcher.statistics().failed, batcher.statistics().finished) == (1, 1)


async def test_a_reader_may_hold_its_batch_back_for_that_long_in_all(steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler, stream_buffer=1, slow_reader_timeout_s=5)
    async with batcher as call, call("a") as stream:
        for number in range(10):
            steps.step(number)
        got = []
        with pytest.raises(shoal.errors.SlowReader):  # noqa: PT012
            while True:
                await anyio.sleep(2)
                got.append(await anext(stream))
        assert got == [0, 1, 2]


async def test_the_allowance_is_whole_again_once_the_reader_has_caught_up(steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler, stream_buffer=1, slow_reader_timeout_s=5)
    async with batcher as call, call("a") as stream:
        for number in range(5):
            steps.step(number)
            await anyio.sleep(4)
            assert await anext(stream) == number
            with anyio.move_on_after(1):
                await anext(stream)
        steps.end()
        assert [item async for item in stream] == []


async def test_two_slow_readers_fail_each_with_an_error_of_its_own(steps: Steps) -> None:
    batcher = steps.pair(stream_buffer=1, slow_reader_timeout_s=5)
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


async def test_the_time_that_one_reader_holds_is_not_charged_to_another(steps: Steps) -> None:
    batcher = steps.pair(stream_buffer=2, slow_reader_timeout_s=5)
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


async def test_reading_in_the_tick_in_which_the_time_is_up_loses_nothing(steps: Steps) -> None:
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
