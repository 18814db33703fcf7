"""A handler may ask whether its batcher begins to end, and end its streams by itself."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import shoal
from batching.scenes import outcome, settle
from shoal.core.request import Batch, DispatchReason


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


async def read(batcher: Any, item: Any, got: list[Any]) -> None:
    async with batcher.call(item) as stream:
        async for step in stream:
            got.append(step)  # noqa: PERF401
    got.append("end")


@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_a_stream_without_an_end_ends_when_the_batcher_does(how: str) -> None:
    batcher: Any = shoal.Batcher(ticks, max_batch_size=1)
    got: list[Any] = []
    async with batcher, anyio.create_task_group() as tasks:
        tasks.start_soon(read, batcher, 1, got)
        await anyio.sleep(2.5)
        if how == "aclose":
            await batcher.aclose()
        else:
            batcher.drain()
            await settle()
        assert got == [1, 1, 1, "end"]
        assert anyio.current_time() == 2.5


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_so_do_the_requests_of_an_open_batch(fill: Any) -> None:
    batcher: Any = shoal.Batcher(stays, fill=fill, streams=True)
    got: list[Any] = []
    async with batcher, anyio.create_task_group() as tasks:
        tasks.start_soon(read, batcher, 1, got)
        await settle()
        await batcher.aclose()
    assert got == ["bye", "end"]


async def test_a_part_of_a_batch_is_told_as_well() -> None:
    batcher: Any = shoal.Batcher(isolated, isolate_errors=True, batch_wait_timeout_s=1)
    async with batcher, anyio.create_task_group() as tasks:
        for item in (1, 2):
            tasks.start_soon(outcome, batcher.call(item))
        await anyio.sleep(2)
        await batcher.aclose()
        assert batcher.statistics().finished == 2


@pytest.mark.real_time
async def test_a_thread_may_ask() -> None:
    def plain(items: list[Any]) -> Iterator[list[Any]]:
        batch = shoal.current_batch()
        while not batch.draining.is_set():
            yield items

    batcher: Any = shoal.Batcher(plain)
    got: list[Any] = []
    with anyio.fail_after(5):
        async with batcher, anyio.create_task_group() as tasks:
            tasks.start_soon(read, batcher, 1, got)
            while not got:
                await anyio.lowlevel.checkpoint()
            await batcher.aclose()
    assert got[-1] == "end"


async def test_a_batch_of_no_batcher_never_drains() -> None:
    batch = Batch(1, DispatchReason.FULL, [])
    assert not batch.draining.is_set()
    with pytest.raises(RuntimeError, match="has no batcher"):
        await batch.draining.wait()
