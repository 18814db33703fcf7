"""Any class can come out of user code: a batch fails with it, and the batcher lives on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest
import trio

import shoal
from base_exceptions import Panic, trio_cancelled
from batching.callers import launch, outcome, outcomes_in_order, read_all
from batching.scenes import settle

KEPT = trio_cancelled()
MAKERS: list[Callable[[], BaseException]] = [
    lambda: Panic("index out of bounds"),
    lambda: asyncio.CancelledError("of a nested loop"),
    lambda: KEPT,
    lambda: GeneratorExit("by hand"),
    lambda: BaseExceptionGroup("several", [Panic("first"), ValueError("second")]),
]
NAMES = ["Panic", "CancelledError", "Cancelled", "GeneratorExit", "BaseExceptionGroup"]
ANY_CLASS = pytest.mark.parametrize("make", MAKERS, ids=NAMES)


async def coroutine(items: list[Any]) -> list[Any]:
    return [raised(item) for item in items]


def plain(items: list[Any]) -> list[Any]:
    return [raised(item) for item in items]


async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
    yield [0] * len(items)
    yield [raised(item) for item in items]


def plain_steps(items: list[Any]) -> Iterator[list[Any]]:
    yield [0] * len(items)
    yield [raised(item) for item in items]


async def opened(batch: Any) -> None:
    async for request in batch:
        request.finish(raised(request.item))


def raised(item: Any) -> Any:
    if isinstance(item, BaseException):
        raise item
    return item


async def answered(batcher: shoal.Batcher[Any], item: Any) -> Any:
    if not batcher.streams:
        return await outcome(batcher.call(item))
    async with anyio.create_task_group() as tasks:
        (reader,) = await read_all(tasks, batcher.call(item))
    return reader.outcome if reader.outcome != "end" else reader.items[-1]


def is_named(error: Any, original: BaseException) -> bool:
    return (
        type(error) is shoal.errors.HandlerFailed
        and type(original).__name__ in str(error)
        and error.__cause__ is original
    )


@ANY_CLASS
@pytest.mark.parametrize(
    ("handler", "fill"),
    [
        (coroutine, "closed"),
        (steps, "closed"),
        pytest.param(plain, "closed", marks=pytest.mark.real_time),
        pytest.param(plain_steps, "closed", marks=pytest.mark.real_time),
        (opened, "open"),
        (opened, "continuous"),
    ],
)
async def test_a_batch_fails_with_whatever_its_handler_raises_and_the_next_one_runs(
    handler: Any, fill: Any, make: Callable[[], BaseException]
) -> None:
    original = make()
    batcher: Any = shoal.Batcher(handler, fill=fill)
    async with batcher:
        assert is_named(await answered(batcher, original), original)
        assert await answered(batcher, 1) == 1
        assert batcher.is_alive


@ANY_CLASS
async def test_what_pad_raises_fails_the_batch(make: Callable[[], BaseException]) -> None:
    def pad(items: list[Any], size: int) -> list[Any]:
        raise original

    original = make()
    options: dict[str, Any] = {"allowed_batch_sizes": [2], "pad": pad, "max_batch_size": 2}
    async with shoal.Batcher(coroutine, **options, batch_wait_timeout_s=1) as call:
        assert is_named(await outcome(call(1)), original)
        assert await outcomes_in_order(call(1), call(2)) == [1, 2]


@pytest.mark.parametrize("kind", [Panic, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_what_stands_in_a_slot_is_no_end_of_a_caller(kind: Any) -> None:
    original = kind("in a slot")

    async def handler(items: list[Any]) -> list[Any]:
        return [original, 2]

    options: dict[str, Any] = {"max_batch_size": 2, "batch_wait_timeout_s": 1}
    async with shoal.Batcher(handler, **options) as call:
        error, result = await outcomes_in_order(call(1), call(2))
    assert is_named(error, original)
    assert result == 2


@ANY_CLASS
async def test_what_a_generator_raises_when_it_is_closed_is_its_own(make):
    async def handler(items: list[Any]) -> AsyncIterator[list[Any]]:
        try:
            while True:
                yield items
                await anyio.sleep(1)
        finally:
            if items[0] == "bad":
                raise make()

    batcher: Any = shoal.Batcher(handler)
    async with batcher as call:
        for item in ("bad", "good"):
            async with call(item) as stream:
                assert await anext(stream) == item
            await settle()
        assert batcher.is_alive
        assert batcher.statistics().batches_running == 0


@ANY_CLASS
async def test_one_item_of_isolated_errors_fails_alone(make: Callable[[], BaseException]) -> None:
    original = make()
    options: dict[str, Any] = {"isolate_errors": True, "batch_wait_timeout_s": 1}
    async with shoal.Batcher(coroutine, max_batch_size=3, **options) as call:
        got = await outcomes_in_order(call(1), call(original), call(3))
    assert [got[0], got[2]] == [1, 3]
    assert is_named(got[1], original)


def raising_in_clean_up(make: Callable[[], BaseException]) -> Any:
    async def handler(items: list[Any]) -> list[Any]:
        if items[0] == "good":
            return items
        try:
            await anyio.sleep_forever()
        finally:
            raise make()

    return handler


@ANY_CLASS
@pytest.mark.parametrize("handler_timeout_s", [2, None], ids=["time is up", "all have left"])
async def test_what_clean_up_raises_ends_the_batch_alone(make, handler_timeout_s):
    batcher = shoal.Batcher(raising_in_clean_up(make), handler_timeout_s=handler_timeout_s)
    async with batcher as call, anyio.create_task_group() as tasks:
        (caller,) = await launch(tasks, call("bad"))
        await anyio.sleep(3)
        if handler_timeout_s is None:
            caller.leave()
        else:
            assert isinstance(caller.outcome, shoal.errors.HandlerTimeout)
        await settle()
        assert await call("good") == "good"
        assert batcher.is_alive


async def test_a_handler_that_cancels_its_own_task_fails_its_batch() -> None:
    if trio.lowlevel.in_trio_task():
        pytest.skip("a task of trio can't be cancelled but by a scope")

    async def fail() -> None:
        raise ZeroDivisionError

    async def handler(items: list[Any]) -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        if items[0] == "bad":
            task.cancel()
            await asyncio.sleep(1)
        if items[0] == "group":  # which takes a task that is being cancelled for its own end
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())
        assert not task.cancelling()
        return items

    async with shoal.Batcher(handler) as call:
        assert isinstance(await outcome(call("bad")), shoal.errors.HandlerFailed)
        assert await call("good") == "good"
        assert isinstance(await outcome(call("group")), ExceptionGroup)
