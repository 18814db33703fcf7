"""What has ended is kept by nobody: not by a parked task's frame, nor by an idle queue."""

import gc
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Held, launch, settle


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


async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
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
    "streams": lambda **options: shoal.Batcher(steps, **options),
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

    async def slow(items: list[Any]) -> list[Any]:
        await anyio.sleep_forever()
        return items

    async with shoal.Batcher(slow, handler_timeout_s=1) as call:
        await call_with(call, references)
        await settle()
        assert gone(references)
