"""Knowing: what a handler can ask about its batch, and what an owner can ask about a batcher."""

import dataclasses
import math
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import launch, line_up, outcomes, read_all
from batching.scenes import Held, Recorder, Refusing, opening, plugged, running, settle
from shoal.core.request import Batch, DispatchReason


async def about(items: list[Any]) -> list[Any]:
    batch = shoal.current_batch()
    return [(batch.id, batch.size, batch.reason, r.item, r.metadata) for r in batch.requests]


async def test_the_handler_knows_its_batch_and_its_requests_in_order() -> None:
    async with opening(about, max_batch_size=2, batch_wait_timeout_s=1) as (_, call, tasks):
        callers = await line_up(
            tasks, call("a"), call.options(metadata={"user": 1})("b"), call("c")
        )
    assert [caller.outcome for caller in callers] == [
        (1, 2, "full", "a", {}),
        (1, 2, "full", "b", {"user": 1}),
        (2, 1, "timer", "c", {}),
    ]


async def test_the_reason_says_why_the_batch_was_dispatched() -> None:
    async with running(about, max_batch_size=2, batch_wait_timeout_s=1) as (batcher, call, tasks):
        (timer,) = await line_up(tasks, call("timer"))
        await anyio.sleep(2)
        (flush,) = await line_up(tasks, call("flush"))
        batcher.flush()
        await settle()
        full = await outcomes(call("full"), call("full"))
        (drain,) = await line_up(tasks, call("drain"))
        await batcher.aclose()
    for got in (timer.outcome, flush.outcome, *full, drain.outcome):
        assert got[2] == got[3]
        assert isinstance(got[2], shoal.DispatchReason)
    counts = batcher.statistics().batches
    assert {reason: count for reason, count in counts.items() if count} == {
        "timer": 1,
        "flush": 1,
        "full": 1,
        "drain": 1,
    }


@pytest.mark.real_time
async def test_every_kind_of_handler_knows_its_batch() -> None:
    def plain(items: list[int]) -> list[int]:
        return [shoal.current_batch().size] * len(items)

    async def steps(items: list[int]) -> AsyncIterator[list[int]]:
        yield [shoal.current_batch().size] * len(items)
        await anyio.lowlevel.checkpoint()
        yield [shoal.current_batch().size] * len(items)

    def plain_steps(items: list[int]) -> Iterator[list[int]]:
        yield [shoal.current_batch().size] * len(items)
        yield [shoal.current_batch().size] * len(items)

    async def in_a_task(items: list[int]) -> list[int]:
        sizes: list[int] = []

        async def note() -> None:
            sizes.append(shoal.current_batch().size)

        async with anyio.create_task_group() as tasks:
            for _ in items:
                tasks.start_soon(note)
        return sizes

    async with shoal.Batcher(plain) as call:
        assert await call(1) == 1
    async with shoal.Batcher(in_a_task) as call_in_a_task:
        assert await call_in_a_task(1) == 1
    for handler in (steps, plain_steps):
        batcher: Any = shoal.Batcher(handler)
        async with batcher as stream:
            assert [size async for size in stream(1)] == [1, 1]


async def test_two_batches_at_once_know_each_their_own() -> None:
    gate = anyio.Event()

    async def handler(items: list[str]) -> list[Any]:
        await gate.wait()
        return [request.item for request in shoal.current_batch().requests]

    async with opening(handler, max_batch_size=1, max_concurrent_batches=2) as (_, call, tasks):
        callers = await launch(tasks, call("a"), call("b"))
        gate.set()
    assert [caller.outcome for caller in callers] == ["a", "b"]


async def test_outside_a_handler_there_is_no_batch() -> None:
    with pytest.raises(RuntimeError, match="no batch is running here"):
        shoal.current_batch()
    async with shoal.Batcher(Recorder()) as call:
        await call(1)
        with pytest.raises(RuntimeError):
            shoal.current_batch()


async def test_a_part_of_an_isolated_batch_knows_the_requests_it_was_given() -> None:
    async def handler(items: list[int]) -> list[Any]:
        assert [request.item for request in shoal.current_batch().requests] == items
        if 0 in items:
            raise ValueError
        return items

    async with shoal.Batcher(handler, isolate_errors=True) as call:
        got = await call.map(range(4), return_exceptions=True)
    assert [type(one) for one in got] == [ValueError, int, int, int]


async def test_statistics_are_a_frozen_snapshot() -> None:
    batcher = shoal.Batcher(Recorder(), name="of cats")
    before = batcher.statistics()
    async with batcher as call:
        await call(1)
        during = batcher.statistics()
        assert batcher.is_alive
    assert not batcher.is_alive
    assert batcher.failure is None
    assert (before.name, before.state, before.finished) == ("of cats", "new", 0)
    assert (during.state, during.finished) == ("open", 1)
    assert batcher.statistics().state == "closed"
    with pytest.raises(dataclasses.FrozenInstanceError):
        during.finished = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        during.batches[shoal.DispatchReason.FULL] = 3  # type: ignore[index]


async def test_statistics_say_where_every_request_is() -> None:
    held = Held(lambda item: ValueError() if item == 1 else item)
    batcher = shoal.Batcher(held, max_batch_size=3, max_queued_requests=1, overload="wait")
    async with batcher as call, anyio.create_task_group() as tasks:
        batcher.configure(batch_wait_timeout_s=100)
        callers = await launch(tasks, *map(call, range(5)))
        now = batcher.statistics()
        assert (now.running, now.batches_running, now.queued, now.parked) == (3, 1, 1, 1)
        await callers[0].gone()
        assert batcher.statistics().running == 2
        held.gate.set()
    then = batcher.statistics()
    assert (then.running, then.batches_running, then.queued, then.parked) == (0, 0, 0, 0)
    assert (then.finished, then.failed, then.cancelled) == (3, 1, 1)
    assert then.batch_size.total == 2
    assert then.batch_size.sum == 5


async def test_the_scheduling_capacity_is_what_would_start_at_once(held: Held) -> None:
    options: Any = {"max_concurrent_batches": 2, "batch_wait_timeout_s": None}
    async with opening(held, max_batch_size=4, **options) as (batcher, call, tasks):
        assert batcher.statistics().scheduling_capacity == 8
        await line_up(tasks, *map(call, range(3)))
        assert batcher.statistics().scheduling_capacity == 5
        await launch(tasks, call(3))
        assert batcher.statistics().scheduling_capacity == 4
        await launch(tasks, *map(call, range(6)))
        assert batcher.statistics().scheduling_capacity == 0
        held.gate.set()
        batcher.flush()
    assert batcher.statistics().scheduling_capacity == 0
    unbounded = shoal.Batcher(held, max_concurrent_batches=None)
    async with unbounded:
        assert unbounded.statistics().scheduling_capacity == math.inf


async def test_wait_and_run_times_are_measured_in_seconds() -> None:
    batcher = shoal.Batcher(Refusing(run_s=3), batch_wait_timeout_s=2)
    async with batcher as call:
        await outcomes(call(1), call(2))
        await call(3)
    statistics = batcher.statistics()
    # Each request's wait, and each batch's run.
    assert statistics.wait_s.sum == pytest.approx(6)
    assert statistics.run_s.sum == pytest.approx(6)
    assert (statistics.wait_s.total, statistics.run_s.total) == (3, 2)
    assert sum(statistics.run_s.counts) == 2
    assert len(statistics.run_s.counts) == len(statistics.run_s.bounds) + 1


async def test_a_batcher_says_where_its_batches_are(held: Held) -> None:
    assert shoal.Batcher(held).stacks() == []
    async with plugged(held) as (batcher, _, _):
        (stack,) = batcher.stacks()
        assert "await self.gate.wait()" in stack


# A handler may ask whether its batcher begins to end, and end its streams by itself


async def ticks(items: list[Any]) -> AsyncIterator[list[Any]]:
    batch = shoal.current_batch()
    while not batch.draining.is_set():
        yield items
        with anyio.move_on_after(1):
            await batch.draining.wait()


async def stays(batch: shoal.OpenBatch[Any, Any]) -> None:
    while await batch.join():
        await batch.draining.wait()
        for request in batch.active:
            await request.send("bye")
            request.finish()


async def isolated(items: list[Any]) -> list[Any]:
    if len(items) > 1:
        raise ValueError
    await shoal.current_batch().draining.wait()
    return items


@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_a_stream_without_an_end_ends_when_the_batcher_does(how: str) -> None:
    async with opening(ticks, max_batch_size=1) as (batcher, call, tasks):
        (reader,) = await read_all(tasks, call(1))
        await anyio.sleep(2.5)
        if how == "aclose":
            await batcher.aclose()
        else:
            batcher.drain()
            await settle()
        assert (reader.items, reader.outcome) == ([1, 1, 1], "end")
        assert anyio.current_time() == 2.5


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_so_do_the_requests_of_an_open_batch(fill: Any) -> None:
    async with opening(stays, fill=fill, streams=True) as (batcher, call, tasks):
        (reader,) = await read_all(tasks, call(1))
        await settle()
        await batcher.aclose()
    assert (reader.items, reader.outcome) == (["bye"], "end")


async def test_a_part_of_a_batch_is_told_as_well() -> None:
    batcher: Any = shoal.Batcher(isolated, isolate_errors=True, batch_wait_timeout_s=1)
    async with opening(batcher) as (_, call, tasks):
        await line_up(tasks, call(1), call(2))
        await anyio.sleep(2)
        await batcher.aclose()
        assert batcher.statistics().finished == 2


@pytest.mark.real_time
async def test_a_thread_may_ask() -> None:
    def plain(items: list[Any]) -> Iterator[list[Any]]:
        batch = shoal.current_batch()
        while not batch.draining.is_set():
            yield items

    with anyio.fail_after(5):
        async with opening(plain) as (batcher, call, tasks):
            (reader,) = await read_all(tasks, call(1))
            while not reader.items:
                await anyio.lowlevel.checkpoint()
            await batcher.aclose()
    assert reader.outcome == "end"


async def test_a_batch_of_no_batcher_never_drains() -> None:
    batch = Batch(1, DispatchReason.FULL, [])
    assert not batch.draining.is_set()
    with pytest.raises(RuntimeError, match="has no batcher"):
        await batch.draining.wait()


# Contexts: the handler runs in the batcher's, and each request keeps its caller's


user: ContextVar[str] = ContextVar("user", default="nobody")


async def coroutine(items: list[Any]) -> list[Any]:
    return [(user.get(), r.context[user]) for r in shoal.current_batch().requests]


def plain(items: list[Any]) -> list[Any]:
    return [(user.get(), r.context[user]) for r in shoal.current_batch().requests]


@pytest.mark.real_time
@pytest.mark.parametrize("handler", [coroutine, plain])
async def test_each_request_keeps_its_callers_context(handler: Any) -> None:
    async def caller(name: str) -> Any:
        user.set(name)
        return await call(1)

    user.set("owner")
    async with shoal.Batcher(handler, max_batch_size=3, batch_wait_timeout_s=None) as call:
        user.set("main")
        got = await outcomes(*map(caller, "abc"))
        assert user.get() == "main"
    assert got == [("owner", "a"), ("owner", "b"), ("owner", "c")]


async def test_a_stream_and_a_map_keep_their_callers_context() -> None:
    async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
        yield await coroutine(items)

    user.set("owner")
    async with shoal.Batcher(steps) as stream, shoal.Batcher(coroutine) as call:
        user.set("caller")
        assert [item async for item in stream(1)] == [("owner", "caller")]
        assert await call.map([1, 2]) == [("owner", "caller")] * 2


async def test_what_a_caller_changes_after_the_call_does_not_show() -> None:
    contexts: list[Any] = []
    gate = anyio.Event()

    async def handler(items: list[int]) -> list[int]:
        await gate.wait()
        contexts.extend(request.context for request in shoal.current_batch().requests)
        return items

    async with shoal.Batcher(handler) as call:
        user.set("before")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 1)
            await settle()
            user.set("after")
            gate.set()
    assert [context[user] for context in contexts] == ["before"]


async def set_in_steps(items: list[int]) -> AsyncIterator[list[Any]]:
    user.set("set in the first step")
    yield [user.get()] * len(items)
    yield [user.get()] * len(items)


def set_in_plain_steps(items: list[int]) -> Iterator[list[Any]]:
    user.set("set in the first step")
    yield [user.get()] * len(items)
    yield [user.get()] * len(items)


@pytest.mark.real_time
@pytest.mark.parametrize("handler", [set_in_steps, set_in_plain_steps])
async def test_the_steps_of_a_generator_share_one_context(handler: Any) -> None:
    async with shoal.Batcher(handler) as call:
        assert [item async for item in call(1)] == ["set in the first step"] * 2


def seen(item: str) -> str:
    before = user.get()
    user.set(item)
    return before


async def sets(items: list[str]) -> list[str]:
    return [seen(items[0])] * len(items)


async def sets_in_steps(items: list[str]) -> AsyncIterator[list[str]]:
    yield [seen(items[0])] * len(items)


async def sets_for_each(batch: shoal.OpenBatch[str, str]) -> None:
    before = seen("a batch")
    async for request in batch:
        request.finish(before)


@pytest.mark.parametrize(
    ("handler", "fill"), [(sets, "closed"), (sets_in_steps, "closed"), (sets_for_each, "open")]
)
async def test_what_a_handler_sets_ends_with_its_batch(handler: Any, fill: Any) -> None:
    async with shoal.Batcher(handler, fill=fill) as call:
        for name in "abc":
            made = call(name)
            got = [item async for item in made] if handler is sets_in_steps else [await made]
            assert got == ["nobody"]
    assert user.get() == "nobody"


async def test_what_a_handler_sets_ends_before_a_failed_batch_runs_again() -> None:
    async def handler(items: list[str]) -> list[str]:
        before = seen(",".join(items))
        if "bad" in items:
            raise ValueError(before)
        return [before] * len(items)

    async with shoal.Batcher(handler, max_batch_size=4, isolate_errors=True) as call:
        got = await call.map(["a", "b", "bad", "c"], return_exceptions=True)
    assert [str(each) for each in got] == ["nobody"] * 4
