"""A task is cancelled wherever it waits: at its first wait, its second, and so on to its end.

After each of these nobody hangs, no other caller has lost anything, and the batcher works on. The
task may be a caller, whoever opens or closes the batcher, or a wait of a handler's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from itertools import count
from typing import Any

import anyio
import pytest
import trio

import shoal
from batching.scenes import slots_of
from shoal.testing import settle

pytestmark = [
    pytest.mark.parametrize("how", ["before it parks", "while it is parked"]),
]
EVERY_FILL = pytest.mark.parametrize("fill", ["closed", "open", "continuous"])
OPEN_FILLS = pytest.mark.parametrize("fill", ["open", "continuous"])
MORE_WAITS_THAN_ANY_SCENE_HAS = 100


class CancelledAtWait:
    """Awaits a coroutine, and cancels it at the n-th time that it waits for the event loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], nth: int, how: str) -> None:
        self.scope = anyio.CancelScope()
        self.waits = 0
        self._coroutine = coroutine
        self._nth = nth
        self._how = how

    async def run(self) -> bool:
        """Returns whether the n-th wait was there to be cancelled."""
        with self.scope:
            await self
        return self.waits >= self._nth

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                wait = step()
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self._nth:
                self._cancel()
            try:
                value = yield wait
            except BaseException as error:
                step = lambda error=error: self._coroutine.throw(error)  # noqa: E731
            else:
                step = lambda value=value: self._coroutine.send(value)  # noqa: E731

    def _cancel(self) -> None:
        if self._how == "before it parks":
            self.scope.cancel()
        elif trio.lowlevel.in_trio_task():
            trio.lowlevel.current_trio_token().run_sync_soon(self.scope.cancel)
        else:
            asyncio.get_running_loop().call_soon(self.scope.cancel)


Scene = Callable[[int], Awaitable[bool]]


async def at_every_wait(scene: Scene, *, waits: int) -> None:
    """Plays a scene once for each wait of its subject, and once to the end; it has some waits."""
    for nth in count(1):
        with anyio.fail_after(1000):
            was_cancelled = await scene(nth)
        if not was_cancelled:
            assert nth > waits
            return
        assert nth < MORE_WAITS_THAN_ANY_SCENE_HAS


async def doubled(items: list[int]) -> list[int]:
    await anyio.lowlevel.checkpoint()
    return [2 * item for item in items]


async def counting(items: list[int]) -> Any:
    for step in range(3):
        await anyio.lowlevel.checkpoint()
        yield [(item, step) for item in items]


async def doubles(batch: Any) -> None:
    async for request in batch:
        await anyio.lowlevel.checkpoint()
        request.finish(2 * request.item)


async def counts(batch: Any) -> None:
    async with anyio.create_task_group() as tasks:
        async for request in batch:
            tasks.start_soon(send_three, request)


async def send_three(request: Any) -> None:
    for step in range(3):
        await request.send((request.item, step))
    if not request.cancelled:
        request.finish()


def options_of(fill: str, **options: Any) -> dict[str, Any]:
    wait = {"batch_wait_timeout_s": 1.0} if fill != "continuous" else {}
    return {"fill": fill, "max_batch_size": 3, **wait, **options}


def doubling(fill: str, **options: Any) -> Any:
    return shoal.Batcher(doubled if fill == "closed" else doubles, **options_of(fill, **options))


class Neighbours:
    """Other callers, who must get their results whatever happens beside them."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self.results: dict[int, Any] = {}
        self.expected: dict[int, Any] = {}

    def call(self, call: Any, item: int) -> None:
        self.expected[item] = 2 * item
        self._tasks.start_soon(self._call, call, item)

    async def _call(self, call: Any, item: int) -> None:
        self.results[item] = await call(item)

    def read(self, call: Any, item: int) -> None:
        self.expected[item] = [(item, 0), (item, 1), (item, 2)]
        self._tasks.start_soon(self._read, call, item)

    async def _read(self, call: Any, item: int) -> None:
        async with call(item) as stream:
            self.results[item] = [step async for step in stream]


def nothing_is_left(batcher: shoal.Batcher[Any]) -> bool:
    now = batcher.statistics()
    return (now.queued, now.parked, now.running, now.batches_running) == (0, 0, 0, 0)


def add_up(batcher: shoal.Batcher[Any], accepted: int) -> bool:
    now = batcher.statistics()
    counts = (now.finished, now.failed, now.cancelled, now.expired)
    return min(counts) >= 0 and sum(counts) == accepted


async def beside_neighbours(
    subject: Callable[[Any], Coroutine[Any, Any, None]],
    nth: int,
    how: str,
    batcher: shoal.Batcher[Any],
) -> bool:
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
        await settle()
        assert batcher.statistics().running == batcher.statistics().queued == 0
    assert nothing_is_left(batcher)
    return was_cancelled


@EVERY_FILL
async def test_a_call(how: str, fill: str) -> None:
    async def subject(call: Any) -> None:
        assert await call(1) == 2

    async def scene(nth: int) -> bool:
        batcher = doubling(fill)
        was_cancelled = await beside_neighbours(subject, nth, how, batcher)
        assert add_up(batcher, 6)
        return was_cancelled

    await at_every_wait(scene, waits=1)


@EVERY_FILL
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
        handler, more = (counting, {}) if fill == "closed" else (counts, {"streams": True})
        batcher: Any = shoal.Batcher(handler, **options_of(fill, stream_buffer=1, **more))
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


@EVERY_FILL
async def test_closing(how: str, fill: str) -> None:
    """It goes on without the one who asked for it, and all who were queued are answered."""

    async def scene(nth: int) -> bool:
        batcher = doubling(fill, max_batch_size=2)

        async def subject() -> None:
            await batcher.aclose()

        async with anyio.create_task_group() as tasks:
            call = await tasks.start(batcher.run)
            neighbours = Neighbours(tasks)
            for item in (10, 11, 12):
                neighbours.call(call, item)
            if nth % 2:
                await settle()
            else:
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        assert neighbours.results == neighbours.expected
        assert nothing_is_left(batcher)
        assert batcher.statistics().state == "closed"
        with pytest.raises(shoal.errors.BatcherClosed):
            await batcher.call(1)
        return was_cancelled

    await at_every_wait(scene, waits=1)


@EVERY_FILL
@pytest.mark.parametrize("form", ["block", "task"])
async def test_opening_and_leaving(how: str, fill: str, form: str) -> None:
    """In a block, or in a task group of the user: whoever waits is answered or told why."""

    async def scene(nth: int) -> bool:
        batcher = doubling(fill, max_batch_size=2)
        ended: list[Any] = []

        async def neighbour(item: int) -> None:
            try:
                ended.append(await batcher.call(item) == 2 * item)
            except shoal.errors.BatcherClosed:
                ended.append(True)

        async with anyio.create_task_group() as tasks:

            async def block() -> None:
                async with batcher as call:
                    for item in (10, 11, 12):
                        tasks.start_soon(neighbour, item)
                    assert await call(1) == 2
                    await settle()

            async def task() -> None:
                async with anyio.create_task_group() as inner:
                    await inner.start(batcher.run)
                    for item in (10, 11, 12):
                        tasks.start_soon(neighbour, item)
                    await anyio.sleep(0.5)
                    await batcher.aclose()

            subject = block() if form == "block" else task()
            was_cancelled = await CancelledAtWait(subject, nth, how).run()
        assert ended in ([], [True] * 3)
        assert nothing_is_left(batcher)
        assert not batcher.is_alive
        assert slots_of(batcher) == 0
        return was_cancelled

    await at_every_wait(scene, waits=2)


async def test_opening_a_decorated_function(how: str) -> None:
    function = shoal.batch(max_batch_size=2)(doubled)
    stepwise = shoal.batch(counting)

    async def subject() -> None:
        async with shoal.open_batchers(function, stepwise):
            assert await function(1) == 2
            async with stepwise(1) as stream:
                assert [step async for step in stream] == [(1, 0), (1, 1), (1, 2)]

    async def scene(nth: int) -> bool:
        was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        with pytest.raises(shoal.errors.NotOpen):
            await function(1)
        async with shoal.open_batchers(function, stepwise):
            assert await function(2) == 4
        return was_cancelled

    await at_every_wait(scene, waits=3)


@OPEN_FILLS
@pytest.mark.parametrize("waits_by", ["anext", "join", "steps"])
@pytest.mark.parametrize("slots", [1, 2])
async def test_a_wait_of_the_handler_for_requests(how, fill, waits_by, slots):
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


@OPEN_FILLS
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
