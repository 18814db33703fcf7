"""A batcher whose handler has room for so many batches, whatever its slots say."""

import math
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Held, Recorder, launch, line_up, outcome, settle, using
from shoal.core.forming.limiter import Limiter
from shoal.core.replicas.members import Members
from shoal.errors import BatcherClosed, Overloaded


class Places:
    """A room of so many places, which handlers take and give back.

    Attributes:
        free: How many there are.
        listeners: Who wants to be told of changes.
    """

    def __init__(self, free: int) -> None:
        self.members: Members[Any] = Members()
        self.limiter = Limiter()
        self.free = free
        self.slots = math.inf
        self.listeners: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(on_change)
        return lambda: self.listeners.remove(on_change)

    def is_full(self) -> bool:
        return self.free < 1

    def rest(self) -> None:
        """There is no queue."""

    def change(self, by: int) -> None:
        self.free += by
        for listener in tuple(self.listeners):
            listener()

    def handler(self, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Makes a handler that has a place for as long as it runs."""

        async def taking(items: list[Any]) -> list[Any]:
            assert self.free > 0
            self.change(-1)
            try:
                return await run(items)
            finally:
                self.change(1)

        return taking


async def test_requests_pile_up_while_there_is_no_room_and_go_in_one_batch() -> None:
    places, recorder = Places(0), Recorder()
    handler = places.handler(recorder)
    async with shoal.Batcher(handler, capacity=places, max_batch_size=8) as call:
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, *map(call, range(5)))
            await anyio.sleep(60)
            assert recorder.batches == []
            places.change(1)
        assert recorder.batches == [[0, 1, 2, 3, 4]]
        assert [caller.outcome for caller in callers] == [0, 1, 2, 3, 4]


async def test_the_room_alone_says_how_many_batches_run() -> None:
    places, held = Places(2), Held()
    batcher = shoal.Batcher(
        places.handler(held), capacity=places, max_batch_size=1, max_concurrent_batches=1
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, *map(call, range(5)))
        assert len(held.batches) == 2
        places.change(1)
        await settle()
        assert len(held.batches) == 3
        held.gate.set()


@pytest.mark.parametrize(("room_at", "started_at"), [(5, 5), (1, 3)], ids=["after", "within"])
async def test_a_window_passes_while_there_is_no_room(room_at: float, started_at: float) -> None:
    places, recorder = Places(0), Recorder()
    async with using(
        shoal.Batcher(places.handler(recorder), capacity=places, batch_wait_timeout_s=3)
    ) as (call, tasks):
        await line_up(tasks, call(1))
        await anyio.sleep(room_at)
        places.change(1)
    assert recorder.started_at == [started_at]


async def test_without_a_queue_a_call_needs_room() -> None:
    places, held = Places(1), Held()
    batcher = shoal.Batcher(places.handler(held), capacity=places, max_queued_requests=0)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, call(1))
        assert isinstance(await outcome(call(2)), Overloaded)
        places.change(1)
        await launch(tasks, call(3))
        assert held.batches == [[1], [3]]
        held.gate.set()


async def test_a_batcher_that_is_closed_listens_no_more() -> None:
    places = Places(1)
    async with shoal.Batcher(places.handler(Recorder()), capacity=places) as call:
        await call(1)
        assert len(places.listeners) == 1
    assert places.listeners == []


@pytest.mark.parametrize("in_time", [True, False])
async def test_what_finds_no_room_until_the_end_of_the_grace_fails(in_time: bool) -> None:
    places, recorder = Places(0), Recorder()
    batcher = shoal.Batcher(
        places.handler(recorder), capacity=places, graceful_shutdown_timeout_s=5
    )
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        [caller] = await line_up(tasks, call(1))
        tasks.start_soon(batcher.aclose)
        await anyio.sleep(1)
        if in_time:
            places.change(1)
    assert anyio.current_time() == (1 if in_time else 5)
    assert recorder.batches == ([[1]] if in_time else [])
    assert caller.outcome == 1 if in_time else isinstance(caller.outcome, BatcherClosed)


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_an_open_batch_is_begun_only_where_there_is_room(fill: Any) -> None:
    places = Places(0)
    begun_at: list[float] = []

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        begun_at.append(anyio.current_time())
        async for request in batch:
            request.finish(-request.item)

    async with (
        shoal.Batcher(handler, capacity=places, fill=fill, max_batch_size=2) as call,
        anyio.create_task_group() as tasks,
    ):
        callers = await line_up(tasks, call(1), call(2))
        await anyio.sleep(3)
        assert begun_at == []
        places.change(1)
        await anyio.sleep(3)
        assert [caller.outcome for caller in callers] == [-1, -2]
    assert begun_at == [3]


async def test_room_that_shrinks_lets_what_runs_end() -> None:
    places, held = Places(2), Held()
    batcher = shoal.Batcher(places.handler(held), capacity=places, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, call(1), call(2), call(3))
        places.change(-1)  # one of the two that are taken goes when it is given back
        held.gate.set()
        await settle()
        assert [caller.outcome for caller in callers] == [1, 2, 3]
    assert places.free == 1
