"""`open_batchers()` without names: all opens at its first call, until the block ends."""

import gc
import weakref
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import shoal
from batching.batched_model import Model, increment
from batching.callers import launch, line_up, outcome, outcomes
from batching.scenes import Held, settle

seen: ContextVar[str] = ContextVar("seen", default="nothing")


@shoal.batch(max_batch_size=4)
async def sizes(numbers: list[int]) -> list[int]:
    return [len(numbers)] * len(numbers)


@shoal.batch
async def spelled(words: list[str]) -> AsyncIterator[list[Any]]:
    for place in range(max(map(len, words))):
        yield [word[place] if place < len(word) else shoal.END for word in words]


class Calling(Model):
    async def one(self, x: int) -> Any:
        return await self.predict(x)


class Slotted:
    __slots__ = ()

    @shoal.batch
    async def predict(self, xs: list[int]) -> list[int]:
        return xs


async def test_functions_open_at_their_first_call_and_close_at_the_end_of_the_block() -> None:
    async with shoal.open_batchers():
        assert await increment(1) == 2
        assert await outcomes(*map(sizes, range(4))) == [4, 4, 4, 4]
        batcher = increment.batcher
        assert batcher.is_alive
        assert await increment.map([1, 2]) == [2, 3]
        assert increment.batcher is batcher
        assert batcher.statistics().finished == 3
    assert batcher.statistics().state == "closed"
    with pytest.raises(shoal.errors.NotOpen, match=r"open_batchers\(increment\):") as caught:
        await increment(1)
    assert "async with shoal.open_batchers():" in str(caught.value)


async def test_first_calls_that_race_share_one_batcher_and_keep_their_order(held: Held) -> None:
    batched = shoal.batch(max_batch_size=8, batch_wait_timeout_s=None)(held)
    async with shoal.open_batchers(), anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(batched, range(8)))
        assert held.batches == [list(range(8))]
        held.gate.set()
    assert [caller.outcome for caller in callers] == list(range(8))


async def test_the_first_call_of_a_bounded_queue_is_not_refused() -> None:
    @shoal.batch(max_queued_requests=0, max_batch_size=2)
    async def bounded(xs: list[int]) -> list[int]:
        return xs

    async with shoal.open_batchers():
        assert await outcomes(bounded(1), bounded(2)) == [1, 2]


async def test_streams_options_and_maps_open_too() -> None:
    async with shoal.open_batchers():
        async with spelled("ab") as stream:
            assert [letter async for letter in stream] == ["a", "b"]
        assert await increment.options(metadata={})(1) == 2
        assert await sizes.map(range(4)) == [4, 4, 4, 4]
        async with spelled.options(metadata={})("c") as stream:
            assert [letter async for letter in stream] == ["c"]


async def test_a_function_is_configured_before_its_first_call() -> None:
    async with shoal.open_batchers():
        sizes.set_max_batch_size(2)
        sizes.set_batch_wait_timeout_s(1)
        assert await outcomes(*map(sizes, range(4))) == [2, 2, 2, 2]


async def test_a_cancelled_first_call_leaves_the_batcher_open(held: Held) -> None:
    batched = shoal.batch(held)
    async with shoal.open_batchers(), anyio.create_task_group() as tasks:
        (caller,) = await launch(tasks, batched(1))
        await caller.gone()
        assert held.cancelled == [[1]]
        held.gate.set()
        assert await batched(2) == 2


async def test_neither_scope_nor_context_of_the_first_caller_reach_the_batcher() -> None:
    contexts: list[str] = []

    @shoal.batch
    async def handler(xs: list[int]) -> list[int]:
        contexts.append(seen.get())
        await anyio.sleep(10)
        return xs

    seen.set("the block's")
    async with shoal.open_batchers():
        seen.set("the caller's")
        with anyio.move_on_after(1):
            await handler(1)
        with anyio.fail_after(100):
            assert await handler(2) == 2
    assert contexts == ["the block's", "the block's"]


async def test_methods_open_for_each_instance() -> None:
    a, b = Calling("a"), Model("b")
    async with shoal.open_batchers():
        got = await outcomes(a.predict(1), b.predict(2), a.one(3), b.predict(4), a.predict(5, 6))
        assert got == [("a", 2, 3), ("b", 3, 2), ("a", 4, 3), ("b", 5, 2), ("a", 11, 3)]
        assert a.predict.batcher is not b.predict.batcher
        assert await a.predict.map([1, 2]) == [("a", 2, 2), ("a", 3, 2)]
        async with a.tokens(1) as first, b.tokens(2) as second:
            assert [token async for token in second] == ["b2.0", "b2.1"]
            assert [token async for token in first] == ["a1.0", "a1.1"]
        assert await Model.predict(a, 1) == ("a", 2, 1)
        assert await Model.of_class(1) == ("Model", 1)
        assert await Model.of_class_outside(1) == ("Model", 1)
        assert await outcomes(Model.static(1), a.static(2)) == [-1, -2]
        assert await Slotted().predict(3) == 3


@pytest.mark.parametrize(
    "call", [lambda m: m.predict(1), lambda m: m.predict.options(metadata={})(1)]
)
async def test_an_instance_lives_as_long_as_its_calls(call: Any) -> None:
    async with shoal.open_batchers(), anyio.create_task_group() as tasks:
        assert await call(Model("x")) == ("x", 2, 1)
        tasks.start_soon(Model("x").predict, 1)
        assert await Model("x").predict.map([1]) == [("x", 2, 1)]
        async with Model("y").tokens(1) as stream:
            assert [token async for token in stream] == ["y1.0", "y1.1"]


async def test_an_instance_that_is_dropped_while_idle_gives_its_batcher_back() -> None:
    model = Model()
    async with shoal.open_batchers():
        await model.predict(1)
        async with model.tokens(1) as stream:
            async for _ in stream:
                pass
        del stream
        await settle()
        batcher, there = model.predict.batcher, weakref.ref(model)
        gc.disable()
        try:
            del model
            assert there() is None
        finally:
            gc.enable()
        await settle()
        assert batcher.statistics().state == "closed"
        assert await Model("next").predict(1) == ("next", 2, 1)


async def test_of_nested_blocks_each_closes_what_was_opened_in_it() -> None:
    async with shoal.open_batchers():
        await increment(1)
        outer = increment.batcher
        async with shoal.open_batchers():
            await increment(1)
            assert increment.batcher is outer
            await sizes(1)
            inner = sizes.batcher
        assert inner.statistics().state == "closed"
        assert outer.is_alive
        assert await sizes(1) == 1
        assert sizes.batcher is not inner


async def test_blocks_that_do_not_nest_end_in_any_order() -> None:
    ends = [anyio.Event(), anyio.Event()]

    async def block(number: int, *, task_status: Any) -> None:
        async with shoal.open_batchers():
            task_status.started()
            await ends[number].wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(block, 0)
        await tasks.start(block, 1)
        assert await increment(1) == 2
        ends[0].set()
        await settle()
        assert await increment(1) == 2
        ends[1].set()
        await settle()
        with pytest.raises(shoal.errors.NotOpen):
            await increment(1)


async def test_a_named_opening_inside_a_block_wins() -> None:
    async with shoal.open_batchers():
        async with shoal.open_batchers(increment):
            named = increment.batcher
            await increment(1)
            with pytest.raises(RuntimeError, match="already"):
                async with shoal.open_batchers(increment):
                    pass
        assert named.statistics().state == "closed"
        await increment(1)
        unnamed = increment.batcher
        async with shoal.open_batchers(increment):
            assert increment.batcher not in (named, unnamed)
            await increment(1)
        assert increment.batcher is unnamed
        assert await increment(1) == 2


async def test_tasks_that_were_there_before_the_block_find_it() -> None:
    asked: Any
    asked, asks = anyio.create_memory_object_stream[int](1)
    got: list[int] = []

    async def caller() -> None:
        async with asks:
            got.append(await increment(await asks.receive()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller)
        await settle()
        async with shoal.open_batchers(), asked:
            await asked.send(1)
            await settle()
    assert got == [2]


async def test_at_the_end_what_runs_may_still_call_and_others_may_not() -> None:
    """f calls g, and g calls f for an odd number: no order of closing would do."""
    held = anyio.Event()

    @shoal.batch
    async def f(xs: list[int]) -> list[int]:
        await held.wait()
        return await g.map(xs) if xs != [0] else xs

    @shoal.batch(max_concurrent_batches=2)
    async def g(xs: list[int]) -> list[int]:
        return [await h(x) if x % 2 else x for x in xs]

    @shoal.batch
    async def h(xs: list[int]) -> list[int]:
        await anyio.sleep(1)
        return await g.map([x + 1 for x in xs])

    outside: list[Any] = []
    async with anyio.create_task_group() as tasks, shoal.open_batchers():
        callers = await launch(tasks, f(1))
        queued = await line_up(tasks, f(3), f(5))

        async def late() -> None:
            await settle()
            outside.append(await outcome(_awaited(f, 7)))
            outside.append(await outcome(_awaited(increment, 7)))
            held.set()

        tasks.start_soon(late)
    assert [caller.outcome for caller in callers + queued] == [2, 4, 6]
    assert [type(error) for error in outside] == [
        shoal.errors.BatcherClosed,
        shoal.errors.BatcherClosed,
    ]


async def _awaited(call: Any, item: Any) -> Any:
    return await call(item)


async def test_the_grace_period_bounds_the_end() -> None:
    @shoal.batch(graceful_shutdown_timeout_s=5)
    async def stuck(xs: list[int]) -> list[int]:
        await anyio.sleep_forever()
        return xs

    @shoal.batch(graceful_shutdown_timeout_s=50)
    async def waiting(xs: list[int]) -> list[int]:
        try:
            return await stuck.map(xs)
        except shoal.errors.BatcherClosed:
            return [-x for x in xs]

    async with anyio.create_task_group() as tasks:
        started = anyio.current_time()
        async with shoal.open_batchers():
            callers = await launch(tasks, waiting(1), stuck(2))
        assert anyio.current_time() - started == 5
    assert callers[0].outcome == -1
    assert type(callers[1].outcome) is shoal.errors.BatcherClosed


async def test_a_cancelled_block_leaves_nobody_waiting(held: Held) -> None:
    batched = shoal.batch(held)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with shoal.open_batchers():
                callers = await launch(tasks, batched(1), batched(2))
                scope.cancel()
                await anyio.sleep_forever()
        await settle()
        assert scope.cancelled_caught
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 2
    assert held.cancelled


async def test_who_cleans_up_in_a_cancelled_block_still_gets_answers() -> None:
    got: list[int] = []
    with anyio.CancelScope() as scope:
        async with shoal.open_batchers():
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    got.append(await increment(1))
    assert got == [2]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_batcher_that_breaks_ends_the_block_with_its_cause() -> None:
    @shoal.batch
    async def exits(xs: list[int]) -> list[int]:
        raise SystemExit(3)

    async def main() -> None:
        async with shoal.open_batchers():
            with pytest.raises(shoal.errors.BatcherClosed):
                await exits(1)
            await anyio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await main()
    assert caught.group_contains(SystemExit)


async def test_an_instance_is_opened_with_all_of_its_batched_methods() -> None:
    a, b = Model("a"), Model("b")
    async with shoal.open_batchers(a, b):
        assert await a.predict(1) == ("a", 2, 1)
        async with b.tokens(2) as stream:
            assert [token async for token in stream] == ["b2.0", "b2.1"]
        with pytest.raises(shoal.errors.NotOpen):
            await Model("c").predict(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *[(given, "open_batchers") for given in (Model, object(), 7)],
        (Held.__call__, r"shoal.Batcher\(handler\)"),
    ],
)
async def test_what_has_no_batched_method_is_refused(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        async with shoal.open_batchers(given):
            pytest.fail("it was opened")


@pytest.mark.real_time
async def test_a_first_call_comes_from_a_worker_thread() -> None:
    async with shoal.open_batchers():
        assert await anyio.to_thread.run_sync(increment.from_thread, 1) == 2
        model = Model()
        assert await anyio.to_thread.run_sync(model.predict.from_thread, 1) == ("m", 2, 1)
        del model


@pytest.mark.real_time
async def test_a_plain_handler_calls_another_one_while_the_block_ends() -> None:
    begun = anyio.Event()

    @shoal.batch
    def plain(xs: list[int]) -> list[int]:
        anyio.from_thread.run_sync(begun.set)
        return [increment.from_thread(x) for x in xs]

    async with anyio.create_task_group() as tasks, shoal.open_batchers():
        (caller,) = await line_up(tasks, plain(1))
        await begun.wait()
    assert caller.outcome == 2


async def test_a_continuous_handler_ends_with_the_block() -> None:
    @shoal.batch(fill="continuous")
    async def echo(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            request.finish(await increment(request.item))

    async with shoal.open_batchers():
        assert await outcomes(echo(1), echo(2)) == [2, 3]


async def test_calls_of_a_function_that_it_decorates_may_overlap() -> None:
    @shoal.open_batchers()
    async def work(number: int) -> int:
        await anyio.sleep(number)
        return await increment(number)

    assert await outcomes(*map(work, (3, 1, 2))) == [4, 2, 3]
