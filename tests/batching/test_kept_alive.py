"""What has ended is kept by nobody: not by a parked task's frame, nor by an idle queue.

It is freed at once: a garbage collector finds no cycle of references after a call.
"""

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import launch
from batching.scenes import Held, settle


class Thing:
    """An item that can be watched."""

    cost = 1
    key = 0


def gone(references: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


async def idle_again(held: Held) -> None:
    await held.release()
    held.batches.clear()
    held.passed.clear()


async def echo(items: list[Any]) -> list[None]:
    return [None for _ in items]


async def open_handler(batch: shoal.OpenBatch[Any, Any]) -> None:
    async for request in batch:
        request.finish(None)
        del request


async def continuous_handler(batch: shoal.OpenBatch[Any, Any]) -> None:
    async for joined in batch.steps():
        for request in joined:
            request.finish(None)
        joined.clear()
        request = None


async def nothings(items: list[Any]) -> AsyncIterator[list[Any]]:
    yield [None for _ in items]


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "levels": {"priority_levels": 3},
    "deadlines": {"order": "deadline"},
    "costs": {"batch_size_fn": lambda item: item.cost},
    "buckets": {"bucket_by": lambda item: item.key},
    "isolated levels": {"priority_levels": 2, "priority_mixing": "isolate"},
    "idle": {"idle_timeout_s": 50},
    "bounded": {"max_queued_requests": 100},
    "parked": {"max_batch_size": 1, "max_queued_requests": 1, "overload": "wait"},
    "shedding": {"max_queued_requests": 100, "overload": "shed_oldest"},
    "adaptive": {"adaptive": shoal.LatencyTarget(p99_s=0.1)},
    "policies": {"default_queue_policy": shoal.QueuePolicy(timeout_s=70)},
    "unbounded": {"max_concurrent_batches": None},
}
KINDS: dict[str, Any] = {
    "unary": lambda **options: shoal.Batcher(echo, **options),
    "open": lambda **options: shoal.Batcher(open_handler, fill="open", **options),
    "continuous": lambda **options: shoal.Batcher(continuous_handler, fill="continuous", **options),
    "streams": lambda **options: shoal.Batcher(nothings, **options),
}


def queues_of(kind: str) -> list[str]:
    if kind in ("open", "continuous"):
        of_closed_batches = {"buckets", "isolated levels", "adaptive", "idle"}
        return [name for name in QUEUES if name not in of_closed_batches]
    return list(QUEUES)


CASES = [(kind, queue) for kind in KINDS for queue in queues_of(kind)]


async def call_with(call: Any, references: list[weakref.ref[Any]], **options: Any) -> None:
    thing = Thing()
    references.append(weakref.ref(thing))
    face = call.options(**options) if options else call
    try:
        made = face(thing)
        del thing
        if isinstance(made, shoal.ResultStream):
            async with made as stream:
                async for _ in stream:
                    pass
        else:
            await made
    except shoal.errors.ShoalError:
        pass


@pytest.mark.parametrize(("kind", "queue"), CASES)
async def test_what_was_answered_is_kept_by_nobody(kind: str, queue: str) -> None:
    asks: list[dict[str, Any]] = [{}, {"timeout_s": 3600}]
    async with KINDS[kind](**QUEUES[queue]) as call:
        for asked in asks:
            references: list[weakref.ref[Any]] = []
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(partial(call_with, call, references, **asked))
            await settle()
            assert len(references) == 5
            assert gone(references), asked


@pytest.mark.parametrize("queue", queues_of("open"))
@pytest.mark.parametrize("streams", [False, True])
async def test_an_open_batch_keeps_nothing_of_what_was_answered(queue: str, streams: bool) -> None:
    async def handler(batch: shoal.OpenBatch[Any, Any]) -> None:
        async for request in batch:
            if streams:
                await request.send(None)
            request.finish(None)
            seen.append(shoal.current_batch().size)
            del request

    seen: list[int] = []
    references: list[weakref.ref[Any]] = []
    options = {**QUEUES[queue], "batch_wait_timeout_s": None}
    batcher: Any = shoal.Batcher(handler, fill="open", streams=streams, **options)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(call_with, call, references)
        await settle()
        assert seen[-1] == 5 or queue == "parked"  # it is the same batch, and still open
        assert gone(references)


@pytest.mark.parametrize(("kind", "queue"), CASES)
async def test_who_ended_without_an_answer_is_kept_by_nobody(kind: str, queue: str) -> None:
    options = {"batch_wait_timeout_s": None, **QUEUES[queue]}
    if queue == "adaptive":
        options.pop("batch_wait_timeout_s")
    asks: list[dict[str, Any]] = [{}, {"timeout_s": 2.0}, {"queue_timeout_s": 2.0}]
    async with KINDS[kind](**options) as call:
        for asked in asks:
            references: list[weakref.ref[Any]] = []
            async with anyio.create_task_group() as tasks:
                for _ in range(9):
                    tasks.start_soon(partial(call_with, call, references, **asked))
                if asked:
                    await settle()
                    await anyio.sleep(3)
                else:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await settle()
            assert len(references) == 9
            assert gone(references), asked or "those who left"


@pytest.mark.parametrize("queue", QUEUES)
async def test_who_waits_behind_a_busy_slot_and_leaves_is_kept_by_nobody_once_it_is_idle(queue):
    references: list[weakref.ref[Any]] = []
    held = Held()
    batcher = shoal.Batcher(held, **{**QUEUES[queue], "max_concurrent_batches": 1})
    async with batcher as call, anyio.create_task_group() as plug:
        await launch(plug, call(Thing()))
        async with anyio.create_task_group() as tasks:
            for _ in range(9):
                tasks.start_soon(call_with, call, references)
            await settle()
            tasks.cancel_scope.cancel()
        await idle_again(held)
        assert gone(references)


async def test_the_last_batch_that_ran_out_of_time_is_not_kept_by_the_task_that_ended_it() -> None:
    references: list[weakref.ref[Any]] = []
    async with shoal.Batcher(never_ends, handler_timeout_s=1) as call:
        await call_with(call, references)
        await settle()
        assert gone(references)


async def found_after(use: Any, handler: Any, **options: Any) -> list[str]:
    """Uses a batcher and returns the types of what only a garbage collector can free."""
    try:
        async with shoal.Batcher(handler, **options) as call:
            await use(call)  # what is made once is made now
            await settle()
            gc.collect()
            gc.disable()
            await use(call)
            await settle()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return [type(found).__name__ for found in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def results(items: list[int]) -> list[int]:
    return items


async def fails(items: list[int]) -> list[int]:
    raise ValueError(items)


async def fails_in_slots(items: list[int]) -> list[Any]:
    return [ValueError(item) for item in items]


async def is_short(items: list[int]) -> list[int]:
    return items[1:]


async def never_ends(items: list[int]) -> list[int]:
    await anyio.sleep_forever()
    return items


async def steps(items: list[int]) -> Any:
    for _ in range(3):
        yield items


async def steps_then_fails(items: list[int]) -> Any:
    yield items
    raise ValueError(items)


async def steps_then_fails_in_slots(items: list[int]) -> Any:
    yield items
    yield [ValueError(item) for item in items]


async def fails_in_first_parts(items: list[tuple[int, ...]]) -> list[Any]:
    return [ValueError(item) if 0 in item else item for item in items]


def parts(item: tuple[int, ...], _: float) -> list[tuple[int, ...]]:
    return [(number,) for number in item]


SPLIT: Any = {"max_batch_size": 1, "batch_size_fn": len, "split": parts, "join": tuple}


async def large_items(call: Any) -> None:
    for item in ((0, 1, 2), (1, 2, 3)):
        with suppress(ValueError), anyio.move_on_after(1):
            await call(item)


async def calls(call: Any) -> None:
    async def one(item: int) -> None:
        with suppress(ValueError, TimeoutError):
            await call(item)

    async with anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(one, item)


async def maps(call: Any) -> None:
    with suppress(ValueError):
        await call.map(range(3))


async def maps_with_errors_in_place(call: Any) -> None:
    await call.map(range(3), return_exceptions=True)


def refuses(item: int) -> int:
    if item == 1:
        raise ValueError(item)
    return 99 if item == 2 else 1


async def leaves(call: Any) -> None:
    with anyio.move_on_after(1):
        await call(1)


async def misses_a_deadline(call: Any) -> None:
    with suppress(TimeoutError):
        await call.options(timeout_s=1)(1)


async def misses_the_deadline_of_a_map(call: Any) -> None:
    with suppress(TimeoutError):
        await call.options(timeout_s=1).map(range(3))


async def reads(call: Any) -> None:
    async def one(item: int) -> None:
        with suppress(ValueError):
            async with call(item) as stream:
                async for _ in stream:
                    pass

    async with anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(one, item)


async def leaves_the_stream(call: Any) -> None:
    async with call(1) as stream:
        await anext(stream)


@pytest.mark.parametrize(
    ("use", "handler", "options"),
    [
        (calls, results, {}),
        (calls, results, {"max_batch_size": 1}),
        (calls, fails, {}),
        (calls, fails, {"isolate_errors": True}),
        (calls, fails, {"handler_timeout_s": 5}),
        (calls, fails_in_slots, {}),
        (calls, is_short, {}),
        (calls, never_ends, {"handler_timeout_s": 5}),
        (maps, results, {}),
        (maps, fails, {}),
        (maps, fails_in_slots, {}),
        (maps_with_errors_in_place, fails, {}),
        (maps_with_errors_in_place, fails_in_slots, {}),
        (maps, results, {"batch_size_fn": refuses}),
        (maps_with_errors_in_place, results, {"batch_size_fn": refuses}),
        (maps_with_errors_in_place, results, {"batch_size_fn": refuses, "dedupe": True}),
        (maps_with_errors_in_place, fails_in_slots, {"request_timeout_s": 9}),
        (maps_with_errors_in_place, results, {"max_queued_requests": 0}),
        (leaves, never_ends, {}),
        (leaves, results, {"batch_wait_timeout_s": None}),
        (misses_a_deadline, never_ends, {}),
        (misses_a_deadline, results, {"batch_wait_timeout_s": None}),
        (misses_the_deadline_of_a_map, never_ends, {}),
        (reads, steps, {}),
        (reads, steps, {"stream_buffer": 1}),
        (reads, steps_then_fails, {}),
        (reads, steps_then_fails_in_slots, {}),
        (leaves_the_stream, steps, {}),
        (large_items, fails_in_first_parts, SPLIT),
        (large_items, never_ends, SPLIT),
    ],
)
async def test_nothing_is_left_for_the_collector(use, handler, options):
    assert await found_after(use, handler, **options) == []


async def test_the_collector_would_find_a_cycle() -> None:
    async def makes_a_cycle(_call: Any) -> None:
        cycle: list[Any] = []
        cycle.append(cycle)

    assert await found_after(makes_a_cycle, results) == ["list"]
