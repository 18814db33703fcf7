"""How a block of batchers that open at their first call ends, and who may open one in it."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from base_exceptions import Panic
from batching.callers import launch, outcome, outcomes
from batching.scenes import Held, settle
from shoal.batching.decorator.block import BatcherBlock, loops_of_context
from shoal.failures.exceptions import own_copy
from time_limits import HANG_S


async def same(xs: list[Any]) -> list[Any]:
    return xs


async def test_one_that_is_closed_by_hand_meanwhile_is_still_heard_of() -> None:
    first_held, last_held = Held(), Held()
    first, last = shoal.batch(first_held), shoal.batch(last_held)

    async def end() -> None:
        await settle()
        tasks.start_soon(closed_by_hand.aclose)
        first_held.gate.set()
        await settle()
        last_held.gate.set()

    async with anyio.create_task_group() as tasks:
        async with shoal.open_batchers():
            callers = await launch(tasks, first(1), last(2))
            closed_by_hand = last.batcher
            tasks.start_soon(end)
        assert anyio.current_time() == 0
    assert [caller.outcome for caller in callers] == [1, 2]


@pytest.mark.real_time
async def test_one_whose_thread_does_not_end_holds_up_no_other(monkeypatch):
    monkeypatch.setattr("shoal.batching.session.LAST_ANSWERS_S", 0)
    begun, end = anyio.Event(), anyio.Event()
    other = shoal.batch(same)

    @shoal.batch(graceful_shutdown_timeout_s=0)
    def stuck(xs: list[int]) -> list[int]:
        anyio.from_thread.run_sync(begun.set)
        anyio.from_thread.run(end.wait)
        return xs

    async def call() -> None:
        with pytest.raises(shoal.errors.BatcherClosed):
            await stuck(1)
        await closing.aclose()
        end.set()

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks, shoal.open_batchers():
            assert await other(1) == 1
            closing = other.batcher
            tasks.start_soon(call)
            await begun.wait()


async def test_a_block_and_one_that_names_a_function_of_it_may_end_at_once() -> None:
    batched = shoal.batch(same)
    end = anyio.Event()

    async def inside(*named: Any, task_status: Any) -> None:
        async with shoal.open_batchers(*named):
            assert await batched(1) == 1
            task_status.started()
            await end.wait()

    for _ in range(10):  # trio wakes them in either order
        async with anyio.create_task_group() as tasks:
            await tasks.start(inside)
            await tasks.start(inside, batched)
            end.set()
        end = anyio.Event()
        with pytest.raises(shoal.errors.NotOpen):
            await batched(1)


async def test_ending_a_block_asks_each_batcher_a_few_times(monkeypatch):
    asked = 0
    at_rest: Any = shoal.Batcher.is_at_rest

    def is_at_rest(batcher: Any) -> Any:
        nonlocal asked
        asked += 1
        return at_rest.fget(batcher)

    monkeypatch.setattr(shoal.Batcher, "is_at_rest", property(is_at_rest))
    held = [Held() for _ in range(30)]
    batched = [shoal.batch(handler) for handler in held]

    async def end_one_by_one() -> None:
        for handler in held:
            await settle()
            handler.gate.set()

    async with anyio.create_task_group() as tasks, shoal.open_batchers():
        await launch(tasks, *[one(1) for one in batched])
        tasks.start_soon(end_one_by_one)
    assert asked < 20 * len(held)


async def test_a_block_that_can_not_be_entered_leaves_nothing_behind() -> None:
    batched = shoal.batch(same)
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with shoal.open_batchers():
            pytest.fail("it was entered")
    assert loops_of_context() == []
    with pytest.raises(shoal.errors.NotOpen):
        await batched(1)


async def test_calls_from_elsewhere_open_nothing_in_a_private_block() -> None:
    batched, other = shoal.batch(same), shoal.batch(same)
    entered, end = anyio.Event(), anyio.Event()

    async def private() -> None:
        async with BatcherBlock(is_private=True):
            assert await other(1) == 1
            entered.set()
            await end.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(private)
        await entered.wait()
        with pytest.raises(shoal.errors.NotOpen):
            await batched(1)
        async with shoal.open_batchers():
            assert await batched(1) == 1
            end.set()
            await settle()
            assert await outcomes(batched(2), other(3)) == [2, 3]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, Panic])
async def test_where_the_program_must_not_end_a_handler_fails_its_batch_alone(error: Any) -> None:
    @shoal.batch
    async def handler(xs: list[int]) -> list[int]:
        if 0 in xs:
            raise error
        return xs

    @shoal.batch
    async def steps(xs: list[int]) -> Any:
        yield xs
        if 0 in xs:
            raise error

    @shoal.batch(fill="open")
    async def open_batch(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            if request.item == 0:
                raise error
            request.finish(request.item)

    async with BatcherBlock(convert_error=own_copy):
        for batched in (handler, open_batch):
            with pytest.raises(shoal.errors.HandlerFailed):
                await batched(0)
            assert await batched(1) == 1
        async with steps(0) as stream:
            assert await anext(stream) == 0
            with pytest.raises(shoal.errors.HandlerFailed):
                await anext(stream)


# Handlers that leave the block in which they run


FORMS = [
    *("coroutine", "steps", "open_batch", "nested", "nested_twice", "task", "isolated"),
    *(pytest.param(form, marks=pytest.mark.real_time) for form in ("plain", "plain_steps")),
]


class Leaving:
    """Handlers that leave the block ``self.block``."""

    block: Any

    async def leave(self) -> None:
        await self.block.__aexit__(None, None, None)

    async def coroutine(self, items: list[int]) -> list[int]:
        await self.leave()
        return items

    async def isolated(self, items: list[int]) -> list[int]:
        if len(items) > 1:
            raise ValueError
        return await self.coroutine(items)

    async def steps(self, items: list[int]) -> AsyncIterator[list[int]]:
        await self.leave()
        yield items

    async def open_batch(self, batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await self.leave()
            await request.finish(1)

    async def task(self, items: list[int]) -> list[int]:
        errors: list[object] = []

        async def leave() -> None:
            errors.append(await outcome(self.leave()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
        (error,) = errors
        assert isinstance(error, Exception)
        raise error

    async def nested(self, items: list[int]) -> list[int]:
        async with shoal.Batcher(self.coroutine) as inner:
            return await inner.map(items)

    async def nested_twice(self, items: list[int]) -> list[int]:
        async with shoal.Batcher(self.nested, dedupe=True) as inner:
            return await inner.map(items)

    def plain(self, items: list[int]) -> list[int]:
        anyio.from_thread.run(self.leave)
        return items

    def plain_steps(self, items: list[int]) -> Iterator[list[int]]:
        anyio.from_thread.run(self.leave)
        yield items


@asynccontextmanager
async def opened(kind: str, form: str) -> AsyncGenerator[Any]:
    """Opens a handler that leaves the block, and yields its call."""
    leaving = Leaving()
    handler = getattr(leaving, form)
    options: Any = {"fill": "open"} if form == "open_batch" else {}
    options["isolate_errors"] = form == "isolated"
    if kind == "Batcher":
        leaving.block = shoal.Batcher(handler, **options)
        async with leaving.block as call:
            yield call
        return
    function = shoal.batch(**options)(handler)
    leaving.block = shoal.open_batchers(*([function] if kind == "named" else []))
    async with leaving.block:
        yield function


async def refused_at_once(call: Any, form: str) -> None:
    began_at = anyio.current_time()
    if form.endswith("steps"):
        async with call(1) as stream:
            error = await outcome(anext(stream))
    elif form == "isolated":
        error, _ = await call.map([1, 2], return_exceptions=True)
    else:
        error = await outcome(call(1))
    assert isinstance(error, shoal.errors.WouldDeadlock), error
    assert "a handler leaves the block of" in str(error)
    if not form.startswith("plain"):
        assert anyio.current_time() == began_at


@pytest.mark.parametrize("kind", ["Batcher", "named", "unnamed"])
@pytest.mark.parametrize("form", FORMS)
async def test_it_is_refused_at_once_and_the_block_stays_open(kind: str, form: str) -> None:
    async with opened(kind, form) as call:
        await refused_at_once(call, form)
        await refused_at_once(call, form)


async def test_a_handler_that_another_one_waits_for_does_not_wait_for_its_batcher_either() -> None:
    async def inner(items: list[int]) -> list[int]:
        await outer_batcher.aclose()
        return items

    async def outer(items: list[int]) -> list[int]:
        return await call_inner.map(items)

    outer_batcher = shoal.Batcher(outer)
    async with shoal.Batcher(inner) as call_inner, outer_batcher as call:
        assert await call(1) == 1
        assert anyio.current_time() == 0
    assert outer_batcher.statistics().state == "closed"


async def test_a_handler_may_leave_the_block_of_another() -> None:
    other = shoal.Batcher(same)
    gate = anyio.Event()

    async def own_the_other() -> None:
        async with other:
            await gate.wait()

    async def handler(items: list[int]) -> list[int]:
        gate.set()
        await other.aclose()
        return items

    async with anyio.create_task_group() as tasks, shoal.Batcher(handler) as call:
        tasks.start_soon(own_the_other)
        await settle()
        assert await call(1) == 1
    assert other.statistics().state == "closed"
