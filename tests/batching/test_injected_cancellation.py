"""A task is cancelled wherever it waits: at its first wait, its second, and so on to its end.

After each of these nobody hangs, no other caller has lost anything, and the batcher works on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from itertools import count
from typing import Any

import anyio
import pytest
import trio

import shoal
from shoal.testing import settle

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("how", ["before it parks", "while it is parked"]),
]
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
    subject: Callable[[Any], Coroutine[Any, Any, None]], nth: int, how: str, **options: Any
) -> bool:
    batcher = shoal.Batcher(doubled, **options)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            neighbours = Neighbours(tasks)
            neighbours.call(call, 10)
            await settle()
            was_cancelled_task = CancelledAtWait(subject(call), nth, how)
            neighbours.call(call, 11)
            was_cancelled = await was_cancelled_task.run()
            await settle()
            neighbours.call(call, 12)
        assert neighbours.results == neighbours.expected
        assert await call(3) == 6
        await settle()
        assert nothing_is_left(batcher)
    return was_cancelled


async def test_a_call(how: str) -> None:
    async def subject(call: Any) -> None:
        assert await call(1) == 2

    async def scene(nth: int) -> bool:
        return await beside_neighbours(
            subject, nth, how, max_batch_size=3, batch_wait_timeout_s=1.0
        )

    await at_every_wait(scene, waits=1)


async def test_a_call_with_a_deadline(how: str) -> None:
    async def subject(call: Any) -> None:
        assert await call.options(timeout_s=9)(1) == 2

    async def scene(nth: int) -> bool:
        return await beside_neighbours(
            subject, nth, how, max_batch_size=3, batch_wait_timeout_s=1.0
        )

    await at_every_wait(scene, waits=1)


async def test_several_calls_one_after_the_other(how: str) -> None:
    async def subject(call: Any) -> None:
        for item in range(3):
            assert await call(item) == 2 * item

    async def scene(nth: int) -> bool:
        return await beside_neighbours(subject, nth, how, max_batch_size=2)

    await at_every_wait(scene, waits=3)


async def test_a_map(how: str) -> None:
    async def subject(call: Any) -> None:
        assert await call.map(range(7)) == [2 * item for item in range(7)]

    async def scene(nth: int) -> bool:
        return await beside_neighbours(subject, nth, how, max_batch_size=3)

    await at_every_wait(scene, waits=1)


async def test_a_caller_that_waits_to_be_admitted(how: str) -> None:
    async def scene(nth: int) -> bool:
        gate = anyio.Event()

        async def held(items: list[int]) -> list[int]:
            await gate.wait()
            return [2 * item for item in items]

        async def subject(call: Any) -> None:
            assert await call(1) == 2

        async def open_the_gate() -> None:
            await anyio.sleep(1)
            gate.set()

        batcher = shoal.Batcher(
            held, max_batch_size=1, max_queued_requests=1, overload="wait", name="held"
        )
        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                for item in (10, 11, 12):
                    neighbours.call(call, item)
                    await settle()
                tasks.start_soon(open_the_gate)
                was_cancelled = await CancelledAtWait(subject(call), nth, how).run()
                neighbours.call(call, 13)
            assert neighbours.results == neighbours.expected
            assert await call(3) == 6
            await settle()
            assert nothing_is_left(batcher)
            assert add_up(batcher, 6)
        return was_cancelled

    await at_every_wait(scene, waits=1)


@pytest.mark.parametrize("reads", [0, 1, 2, None])
async def test_a_stream(how: str, reads: int | None) -> None:
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
        batcher = shoal.Batcher(counting, max_batch_size=3, stream_buffer=1)
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
            await settle()
            assert nothing_is_left(batcher)
            assert add_up(batcher, 5)
        return was_cancelled

    await at_every_wait(scene, waits=1)


async def test_closing(how: str) -> None:
    """It goes on without the one who asked for it, and all who were queued are answered."""

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubled, max_batch_size=2, batch_wait_timeout_s=None)

        async def subject() -> None:
            assert await batcher.aclose() == shoal.statistics.ClosingCounts(3, 0, 0)

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


async def test_opening_and_leaving(how: str) -> None:
    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubled, max_batch_size=2, batch_wait_timeout_s=1.0)
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
        assert not batcher.is_alive
        assert batcher.stacks() == []
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


async def test_a_batcher_in_a_task_group_of_the_user(how: str) -> None:
    """Its task is cancelled while calls wait: they all fail, with an error that says why."""

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubled, max_batch_size=2, batch_wait_timeout_s=1.0)
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
        return was_cancelled

    await at_every_wait(scene, waits=2)


def parity(item: int) -> int:
    return item % 2


def cost_of_2(_: int) -> float:
    return 2


FORMING: dict[str, dict[str, Any]] = {
    "costs": {"batch_size_fn": cost_of_2, "max_batch_size": 6},
    "buckets": {"bucket_by": parity},
    "levels": {"priority_levels": 3, "default_priority": 2},
    "one level a batch": {"priority_levels": 3, "priority_mixing": "isolate"},
    "deadlines": {"order": "deadline", "use_scope_deadline": True},
    "sizes": {"allowed_batch_sizes": (1, 3), "padding": "down", "max_batch_size": 3},
    "preferred sizes": {"preferred_batch_sizes": (2,)},
    "idle": {"idle_timeout_s": 0.5, "batch_wait_timeout_s": None},
    "a target": {"adaptive": shoal.LatencyTarget(p99_s=1.0), "batch_wait_timeout_s": 0},
}
PLAIN_AGAIN: dict[str, Any] = {
    "max_batch_size": 4,
    "batch_wait_timeout_s": 1.0,
    "padding": "up",
    "priority_levels": 1,
    "priority_mixing": "merge",
    "order": "arrival",
}
NONE = {
    "adaptive",
    "allowed_batch_sizes",
    "batch_size_fn",
    "bucket_by",
    "default_priority",
    "idle_timeout_s",
    "preferred_batch_sizes",
}


@pytest.mark.parametrize("rule", FORMING)
async def test_a_call_of_each_rule(how: str, rule: str) -> None:
    async def subject(call: Any) -> None:
        priority = 1 if "level" in rule else None
        asking = call.options(timeout_s=9, queue_timeout_s=5, priority=priority)
        assert await asking(1) == 2
        assert await asking.map([2, 3, 5]) == [4, 6, 10]

    async def scene(nth: int) -> bool:
        options = {"max_batch_size": 3, "batch_wait_timeout_s": 1.0} | FORMING[rule]
        return await beside_neighbours(subject, nth, how, **options)

    await at_every_wait(scene, waits=2)


@pytest.mark.parametrize("overload", ["shed_oldest", "shed_lowest"])
async def test_a_caller_who_sheds_another(how: str, overload: str) -> None:
    """It leaves when another has been shed for it: who was shed stays so, the others are served."""

    async def scene(nth: int) -> bool:
        gate = anyio.Event()

        async def held(items: list[int]) -> list[int]:
            await gate.wait()
            return [2 * item for item in items]

        batcher = shoal.Batcher(
            held, max_batch_size=1, max_queued_requests=2, overload=overload, priority_levels=3
        )
        ends: dict[int, Any] = {}

        async def neighbour(level: int, item: int) -> None:
            try:
                ends[item] = await batcher.call.options(priority=level)(item)
            except shoal.errors.Overloaded:
                ends[item] = "shed"

        async def subject() -> None:
            assert await batcher.call.options(priority=1)(1) == 2

        async with batcher, anyio.create_task_group() as tasks:
            for level, item in ((1, 10), (2, 11), (3, 12)):
                tasks.start_soon(neighbour, level, item)
                await settle()
            tasks.start_soon(open_after_a_second, gate)
            was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        assert ends == {10: 20, 11: 22, 12: "shed"}
        assert nothing_is_left(batcher)
        assert batcher.statistics().shed == 1
        assert add_up(batcher, 3)
        return was_cancelled

    await at_every_wait(scene, waits=1)


async def open_after_a_second(gate: anyio.Event) -> None:
    await anyio.sleep(1)
    gate.set()


def halves(item: list[int], room: float) -> list[list[int]]:
    return [item[: int(room)], *(item[at : at + 4] for at in range(int(room), len(item), 4))]


def joined(results: list[list[int]]) -> list[int]:
    return [number for result in results for number in result]


async def doubled_lists(items: list[list[int]]) -> list[list[int]]:
    await anyio.lowlevel.checkpoint()
    return [[2 * number for number in item] for item in items]


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
async def test_a_call_of_several_parts(how: str, slots: int, as_map: bool) -> None:
    large, small = list(range(10)), [1, 2, 3]

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(
            doubled_lists,
            max_batch_size=4,
            max_concurrent_batches=slots,
            batch_wait_timeout_s=1.0,
            batch_size_fn=len,
            split=halves,
            join=joined,
        )
        results: list[list[int]] = []

        async def neighbour() -> None:
            results.append(await batcher.call(small))

        async def subject() -> None:
            if as_map:
                assert await batcher.call.map([large, small]) == [
                    [2 * number for number in item] for item in (large, small)
                ]
            else:
                assert await batcher.call(large) == [2 * number for number in large]

        async with batcher:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(neighbour)
                await settle()
                was_cancelled = await CancelledAtWait(subject(), nth, how).run()
                tasks.start_soon(neighbour)
            assert results == [[2, 4, 6]] * 2
            await settle()
            assert nothing_is_left(batcher)
        return was_cancelled

    await at_every_wait(scene, waits=1)


async def test_a_caller_beside_an_item_that_makes_the_handler_fail(how: str) -> None:
    """It leaves at any of the runs by which the poisoned item is found; all others are answered."""

    async def picky(items: list[int]) -> list[int]:
        await anyio.sleep(0.25)
        if 13 in items:
            raise ValueError("unlucky")
        return [2 * item for item in items]

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(
            picky, max_batch_size=6, batch_wait_timeout_s=1.0, isolate_errors=True
        )

        async def poisoned() -> None:
            with pytest.raises(ValueError, match="unlucky"):
                await batcher.call(13)

        async def subject() -> None:
            assert await batcher.call.map([1, 2]) == [2, 4]
            assert await batcher.call(3) == 6

        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                neighbours.call(call, 10)
                tasks.start_soon(poisoned)
                neighbours.call(call, 11)
                was_cancelled = await CancelledAtWait(subject(), nth, how).run()
            assert neighbours.results == neighbours.expected
            await settle()
            assert nothing_is_left(batcher)
        return was_cancelled

    await at_every_wait(scene, waits=2)


async def test_configuring_while_calls_wait_and_run(how: str) -> None:
    """Whoever changes the options is cancelled between the changes; nobody's call is lost."""

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubled, max_batch_size=4, batch_wait_timeout_s=1.0)

        async def subject() -> None:
            for options in FORMING.values():
                batcher.configure(**options)
                await anyio.sleep(0.25)
                batcher.configure(**dict.fromkeys(NONE), **PLAIN_AGAIN)
                await anyio.sleep(0.25)

        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                for item in range(10, 15):
                    neighbours.call(call, item)
                tasks.start_soon(late_neighbours, neighbours, call)
                was_cancelled = await CancelledAtWait(subject(), nth, how).run()
                batcher.drain()
            assert neighbours.results == neighbours.expected
            assert nothing_is_left(batcher)
            assert add_up(batcher, 15)
        return was_cancelled

    await at_every_wait(scene, waits=10)


async def late_neighbours(neighbours: Neighbours, call: Any) -> None:
    for item in range(20, 30):
        await anyio.sleep(0.375)
        neighbours.call(call, item)
