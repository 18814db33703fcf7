"""Open and continuous batches, with a task cancelled wherever it waits.

The tools are those of `test_injected_cancellation`. A subject may be a caller, whoever closes the
batcher, or a wait of the handler's own.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import shoal
from batching.test_injected_cancellation import (
    CancelledAtWait,
    Neighbours,
    add_up,
    at_every_wait,
    nothing_is_left,
)
from shoal.testing import settle

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("how", ["before it parks", "while it is parked"]),
    pytest.mark.parametrize("fill", ["open", "continuous"]),
]


async def doubles(batch: Any) -> None:
    async for request in batch:
        await anyio.lowlevel.checkpoint()
        request.finish(2 * request.item)


async def counts(batch: Any) -> None:
    async with anyio.create_task_group() as tasks:
        async for request in batch:
            tasks.start_soon(count, request)


async def count(request: Any) -> None:
    for step in range(3):
        await request.send((request.item, step))
    if not request.cancelled:
        request.finish()


def options_of(fill: str, **options: Any) -> dict[str, Any]:
    wait = {"batch_wait_timeout_s": 1.0} if fill == "open" else {}
    return {"fill": fill, "max_batch_size": 3, **wait, **options}


async def test_a_call(how: str, fill: str) -> None:
    async def subject(call: Any) -> None:
        assert await call(1) == 2

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubles, **options_of(fill))
        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                neighbours.call(call, 10)
                await settle()
                cancelled = CancelledAtWait(subject(call), nth, how)
                neighbours.call(call, 11)
                was_cancelled = await cancelled.run()
                neighbours.call(call, 12)
                await settle()
                neighbours.call(call, 13)
            assert neighbours.results == neighbours.expected
            assert await call(3) == 6
            await anyio.sleep(5)
            assert fill == "continuous" or nothing_is_left(batcher)
            assert add_up(batcher, 6)
        assert nothing_is_left(batcher)
        return was_cancelled

    await at_every_wait(scene, waits=1)


@pytest.mark.parametrize("reads", [0, 1, None])
async def test_a_stream(how: str, fill: str, reads: int | None) -> None:
    async def subject(call: Any) -> None:
        async with call(1) as stream:
            read = 0
            while reads is None or read < reads:
                step = await anext(stream, None)
                if step is None:
                    break
                assert step == (1, read)
                read += 1
        await stream.aclose()

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(counts, **options_of(fill, streams=True, stream_buffer=1))
        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                neighbours.read(call, 10)
                neighbours.read(call, 11)
                was_cancelled = await CancelledAtWait(subject(call), nth, how).run()
                neighbours.read(call, 12)
            assert neighbours.results == neighbours.expected
            async with call(3) as stream:
                assert [step async for step in stream] == [(3, 0), (3, 1), (3, 2)]
            assert add_up(batcher, 5)
        assert nothing_is_left(batcher)
        return was_cancelled

    await at_every_wait(scene, waits=1)


async def test_closing(how: str, fill: str) -> None:
    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubles, **options_of(fill, max_batch_size=2))

        async def subject() -> None:
            await batcher.aclose()

        async with anyio.create_task_group() as tasks:
            call = await tasks.start(batcher.run)
            neighbours = Neighbours(tasks)
            for item in (10, 11, 12):
                neighbours.call(call, item)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        assert neighbours.results == neighbours.expected
        assert nothing_is_left(batcher)
        assert batcher.statistics().state == "closed"
        assert batcher.stacks() == []
        return was_cancelled

    await at_every_wait(scene, waits=1)


async def test_opening_and_leaving(how: str, fill: str) -> None:
    async def scene(nth: int) -> bool:
        batcher: Any = shoal.Batcher(doubles, **options_of(fill))
        ended: list[Any] = []
        async with anyio.create_task_group() as tasks:

            async def neighbour(item: int) -> None:
                try:
                    ended.append(await batcher.call(item) == 2 * item)
                except shoal.errors.BatcherClosed:
                    ended.append(True)

            async def subject() -> None:
                async with batcher as call:
                    for item in (10, 11, 12):
                        tasks.start_soon(neighbour, item)
                    assert await call(1) == 2
                    await settle()

            was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        assert ended in ([], [True] * 3)
        assert nothing_is_left(batcher)
        assert batcher.stacks() == []
        return was_cancelled

    await at_every_wait(scene, waits=2)


@pytest.mark.parametrize("waits_by", ["anext", "join", "steps"])
@pytest.mark.parametrize("slots", [1, 2])
async def test_a_wait_of_the_handler_for_requests(
    how: str, fill: str, waits_by: str, slots: int
) -> None:
    """Nothing is lost: the next wait gives what this one would have given."""

    async def scene(nth: int) -> bool:
        was_cancelled: list[bool] = []

        async def handler(batch: Any) -> None:
            async def subject() -> None:
                match waits_by:
                    case "join":
                        found = await batch.join()
                    case "anext":
                        found = [await anext(batch)]
                    case "steps":
                        found = await anext(batch.steps())
                for request in found:
                    request.finish(2 * request.item)

            was_cancelled.append(await CancelledAtWait(subject(), nth, how).run())
            await doubles(batch)
            for request in batch.active:
                request.finish(2 * request.item)

        batcher: Any = shoal.Batcher(handler, **options_of(fill, max_concurrent_batches=slots))
        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                for item in range(10, 17):
                    neighbours.call(call, item)
                    if item % 2:
                        await settle()
            assert neighbours.results == neighbours.expected
            assert await call(3) == 6
        assert nothing_is_left(batcher)
        assert add_up(batcher, 8)
        return all(was_cancelled)

    await at_every_wait(scene, waits=1)


async def test_a_wait_of_the_handler_for_a_reader(how: str, fill: str) -> None:
    async def scene(nth: int) -> bool:
        was_cancelled: list[bool] = []
        sent: list[int] = []

        async def handler(batch: Any) -> None:
            async for request in batch:

                async def subject(request: Any = request) -> None:
                    for number in range(3):
                        await request.send(number)
                        sent.append(number)

                was_cancelled.append(await CancelledAtWait(subject(), nth, how).run())
                await request.send("last")
                request.finish()

        batcher: Any = shoal.Batcher(handler, **options_of(fill, streams=True, stream_buffer=1))
        async with batcher as call, call(1) as stream:
            await settle()
            got = [item async for item in stream]
            assert got == [*sent, "last"]
        assert nothing_is_left(batcher)
        return all(was_cancelled)

    await at_every_wait(scene, waits=3)


async def test_a_batcher_in_a_task_group_of_the_user(how: str, fill: str) -> None:
    """Its task is cancelled while calls wait: they all fail, with an error that says why."""

    async def scene(nth: int) -> bool:
        batcher: Any = shoal.Batcher(doubles, **options_of(fill, max_batch_size=2))
        ended: list[Any] = []

        async def neighbour(item: int) -> None:
            try:
                ended.append(await batcher.call(item) == 2 * item)
            except shoal.errors.BatcherClosed:
                ended.append(True)

        async with anyio.create_task_group() as tasks:

            async def subject() -> None:
                async with anyio.create_task_group() as inner:
                    await inner.start(batcher.run)
                    for item in (10, 11, 12):
                        tasks.start_soon(neighbour, item)
                    await anyio.sleep(0.5)
                    await batcher.aclose()

            was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        assert ended in ([], [True] * 3)
        assert nothing_is_left(batcher)
        assert batcher.stacks() == []
        return was_cancelled

    await at_every_wait(scene, waits=2)
