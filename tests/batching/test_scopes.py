"""Cancel scopes of handlers: of those that leave one open, and of generators that yield in one.

It harms no other batch, and a batch ends in order that a reader leaves while a scope is entered.
"""

import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import line_up, outcome, outcomes, read_all
from batching.scenes import settle
from handlers import echo
from shoal.loops import private

scopes: list[anyio.CancelScope] = []


def entered(scope: anyio.CancelScope) -> anyio.CancelScope:
    scope.__enter__()
    scopes.append(scope)
    return scope


def with_a_time() -> None:
    entered(anyio.move_on_after(0.5))


def that_another_cancels() -> None:
    entered(anyio.CancelScope())


def that_is_cancelled() -> None:
    entered(anyio.CancelScope()).cancel()


def two_of_them() -> None:
    with_a_time()
    that_another_cancels()


def with_a_shield() -> None:
    entered(anyio.move_on_after(0.5, shield=True))


LEFT_OPEN = pytest.mark.parametrize(
    "leave_open", [with_a_time, that_another_cancels, that_is_cancelled, two_of_them, with_a_shield]
)


async def cancel_scopes() -> None:
    await anyio.sleep(0.7)
    for scope in scopes:
        scope.cancel()


async def harms_only_its_batch(
    batcher: shoal.Batcher[Any], expected: type[object], calls: int = 1
) -> None:
    async with batcher as call:
        for _ in range(2):
            scopes.clear()
            for got in await outcomes(*[call("bad") for _ in range(calls)]):
                assert isinstance(got, expected)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_scopes)
                for _ in range(3):
                    assert await outcome(call("slow")) == "slow"


def handler_of(leave_open: Callable[[], None], *, fails: bool = False, wait_s: float = 0) -> Any:
    async def handler(items: list[str]) -> list[str]:
        if items[0] == "slow":
            await anyio.sleep(1)
        elif items[0] == "bad":
            leave_open()
            if wait_s:
                await anyio.sleep(wait_s)
            if fails:
                raise ValueError(items[0])
        return items

    return handler


@LEFT_OPEN
async def test_its_batch_is_answered_and_the_next_ones_are_not_harmed(leave_open, caplog):
    await harms_only_its_batch(shoal.Batcher(handler_of(leave_open)), str)
    assert [record.message for record in caplog.records] == [
        "a handler has left a cancel scope open"
    ] * 2


@LEFT_OPEN
async def test_so_it_is_if_it_fails(leave_open: Any) -> None:
    await harms_only_its_batch(shoal.Batcher(handler_of(leave_open, fails=True)), ValueError)


@LEFT_OPEN
async def test_so_it_is_in_a_part_of_a_batch(leave_open: Any) -> None:
    async def handler(items: list[str]) -> list[str]:
        if len(items) > 1:
            raise ValueError(items)
        return await handler_of(leave_open)(items)

    batcher = shoal.Batcher(handler, max_batch_size=2, isolate_errors=True)
    await harms_only_its_batch(batcher, object, calls=2)


@LEFT_OPEN
async def test_so_it_is_for_open_batches(leave_open: Any) -> None:
    async def handler(batch: shoal.OpenBatch[str, str]) -> None:
        async for request in batch:
            [result] = await handler_of(leave_open)([request.item])
            request.finish(result)

    await harms_only_its_batch(shoal.Batcher(handler, fill="open"), str)


@LEFT_OPEN
async def test_a_slot_that_was_cancelled_by_it_runs_the_next_batches_and_has_room_again(leave_open):
    scopes.clear()
    handler = handler_of(leave_open, wait_s=2)
    async with shoal.Batcher(handler, max_batch_size=2, max_queued_requests=1) as call:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_scopes)
            assert isinstance(await outcome(call("bad")), shoal.errors.ShoalError)
        assert await outcomes(call("a"), call("b"), call("c")) == ["a", "b", "c"]
        assert await outcome(call("slow")) == "slow"


def within_move_on() -> Any:
    return anyio.move_on_after(10)


def within_fail() -> Any:
    return anyio.fail_after(10)


@asynccontextmanager
async def within_tasks() -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 20)
        yield
        tasks.cancel_scope.cancel()


def within_batcher() -> Any:
    return shoal.Batcher(echo)


def generator(make: Any) -> Any:
    async def sync_block(items: list[Any]) -> AsyncIterator[list[Any]]:
        with make():
            while True:
                await anyio.sleep(1)
                yield items

    async def async_block(items: list[Any]) -> AsyncIterator[list[Any]]:
        async with make():
            while True:
                await anyio.sleep(1)
                yield items

    return async_block if make in (within_tasks, within_batcher) else sync_block


EVERY_SCOPE = pytest.mark.parametrize(
    "make", [within_move_on, within_fail, within_tasks, within_batcher]
)


@EVERY_SCOPE
async def test_a_reader_that_leaves_ends_its_batch_and_no_other(make: Any) -> None:
    batcher: Any = shoal.Batcher(generator(make), max_batch_size=1, max_concurrent_batches=2)
    async with batcher as call:
        async with call("stays") as neighbour:
            for _ in range(3):
                async with call("leaves") as stream:
                    assert await anext(stream) == "leaves"
                await settle()
                assert await anext(neighbour) == "stays"
        await settle()
        assert batcher.is_alive
        assert batcher.statistics().batches_running == 0


@EVERY_SCOPE
async def test_the_time_of_the_handler_may_be_up_while_it_is_in_its_scope(make: Any) -> None:
    batcher: Any = shoal.Batcher(generator(make), handler_timeout_s=2.5)
    async with batcher as call:
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                (reader,) = await read_all(tasks, call("a"))
            assert reader.items == ["a", "a"]
            assert isinstance(reader.outcome, shoal.errors.HandlerTimeout)
        assert batcher.is_alive


@EVERY_SCOPE
async def test_closing_the_batcher_closes_the_generator_in_its_scope(make: Any) -> None:
    batcher: Any = shoal.Batcher(generator(make), graceful_shutdown_timeout_s=1.5)
    async with batcher as call, call("a") as stream:
        assert await anext(stream) == "a"
        await batcher.aclose()
        assert await anext(stream) == "a"
        with pytest.raises(shoal.errors.BatcherClosed):
            await anext(stream)


@pytest.mark.parametrize("make", [within_move_on, within_fail])
async def test_a_scope_that_ends_between_two_steps_fails_its_batch_and_says_why(make, held):
    options: dict[str, Any] = {"stream_buffer": 2, "slow_reader_timeout_s": None}
    batcher: Any = shoal.Batcher(
        generator(make), **options, max_batch_size=1, max_concurrent_batches=2
    )
    async with batcher as call, shoal.Batcher(held) as other:
        async with call("slow") as stream:
            assert await anext(stream) == "slow"
            await anyio.sleep(20)  # the generator is held back, and its scope's time passes
            assert [await anext(stream) for _ in range(2)] == ["slow"] * 2
            with pytest.raises(shoal.errors.HandlerFailed, match="yields inside of a cancel scope"):
                await anext(stream)
        async with call("next") as stream:
            assert await anext(stream) == "next"
        async with anyio.create_task_group() as tasks:
            (caller,) = await line_up(tasks, other(1))
            held.gate.set()
        assert caller.outcome == 1
        assert batcher.is_alive


async def stubborn(items: list[Any]) -> AsyncIterator[list[Any]]:
    """Can't be closed, and so never leaves its scope."""
    with anyio.CancelScope():
        try:
            while True:
                await anyio.sleep(1)
                yield items
        finally:
            yield items


async def sloppy(items: list[Any]) -> AsyncIterator[list[Any]]:
    """Enters a scope and forgets it."""
    anyio.CancelScope(deadline=anyio.current_time() + 5).__enter__()
    while True:
        await anyio.sleep(1)
        yield items


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("handler", [stubborn, sloppy])
async def test_a_generator_that_never_leaves_its_scope_fails_its_batch_alone(handler: Any) -> None:
    batcher: Any = shoal.Batcher(handler, max_batch_size=2, max_concurrent_batches=2)
    async with batcher as call:
        async with call("a") as leaving, call("b") as staying:
            assert await anext(leaving) == "a"
            assert await anext(staying) == "b"
            await leaving.aclose()
            assert await anext(staying) == "b"
        await settle()
        await anyio.sleep(30)
        async with call("next") as stream:
            assert await anext(stream) == "next"
        assert batcher.is_alive
    assert batcher.statistics().state == "closed"
    gc.collect()  # so that what can't be closed is complained of here


async def test_a_handler_that_forgets_a_scope_takes_no_other_batch_down() -> None:
    async def handler(items: list[Any]) -> list[Any]:
        if items[0] == "bad":
            anyio.CancelScope(deadline=anyio.current_time() + 5).__enter__()
        return items

    batcher = shoal.Batcher(handler)
    async with batcher as call:
        assert await call("bad") == "bad"
        await anyio.sleep(10)  # the scope's time passes while the batcher is idle
        assert await call("good") == "good"
        assert await call("bad") == "bad"
        assert await outcome(call("good")) == "good"
    assert batcher.statistics().state == "closed"


@EVERY_SCOPE
async def test_an_anyio_that_keeps_its_scopes_elsewhere_changes_nothing_for_tidy_generators(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "OF_ANYIO", "_absent")
    await test_a_reader_that_leaves_ends_its_batch_and_no_other(make)
