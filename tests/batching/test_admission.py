"""Admission: a bound on the queue, and what a call meets when the queue is full."""

import math
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, line_up, outcome, outcomes, read_all
from batching.scenes import Held, Recorder, Steps, opening, plugged, running, settle
from shoal.core.forming.limiter import Limiter
from shoal.core.replicas.members import Members
from shoal.errors import BatcherClosed, Overloaded


def bounded(handler: Any, bound: int | None, overload: Any, **options: Any) -> Any:
    options = {"max_batch_size": 1, **options}
    return shoal.Batcher(handler, max_queued_requests=bound, overload=overload, **options)


async def busy(tasks: Any, call: Any) -> None:
    await launch(tasks, call("busy"))


async def test_by_default_the_queue_has_no_bound(held: Held) -> None:
    async with opening(held, max_batch_size=1) as (batcher, call, tasks):
        await line_up(tasks, *map(call, range(200)))
        assert batcher.statistics().queued == 199
        tasks.cancel_scope.cancel()


async def test_wait_parks_the_callers_in_order(held: Held) -> None:
    options: Any = {"max_queued_requests": 2, "max_batch_size": 1, "overload": "wait"}
    async with plugged(held, "busy", **options) as (batcher, call, tasks):
        callers = await line_up(tasks, *map(call, range(6)))
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.parked, statistics.rejected) == (2, 4, 0)
        assert [caller.outcome for caller in callers] == [PENDING] * 6
    assert [caller.outcome for caller in callers] == list(range(6))
    assert held.batches == [["busy"], *([item] for item in range(6))]


async def test_a_new_call_does_not_overtake_those_that_are_parked(held: Held) -> None:
    async with bounded(held, 1, "wait") as call, anyio.create_task_group() as tasks:
        await busy(tasks, call)
        callers = await line_up(tasks, *map(call, range(3)))
        callers[0].leave()
        callers += await launch(tasks, call(3))
        held.gate.set()
    assert callers[0].outcome == LEFT
    assert held.batches == [["busy"], [1], [2], [3]]


async def test_parked_requests_make_full_batches_when_the_slot_is_free(held: Held) -> None:
    batcher = bounded(held, 4, "wait", max_batch_size=4, batch_wait_timeout_s=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, *map(call, range(12)))
        held.gate.set()
    assert held.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("overload", ["reject", "wait"])
async def test_tb10_a_bound_of_0_admits_only_what_can_start_now(overload: str, held: Held) -> None:
    slots: Any = {"max_concurrent_batches": 2, "max_batch_size": 2, "batch_wait_timeout_s": 1}
    async with opening(bounded(held, 0, overload, **slots)) as (batcher, call, tasks):
        callers = await launch(tasks, *map(call, range(4)))
        callers += await launch(tasks, call(4))
        if overload == "reject":
            assert isinstance(callers[4].outcome, shoal.errors.Overloaded)
        else:
            assert callers[4].outcome == PENDING
            assert batcher.statistics().parked == 1
        held.gate.set()
    assert [caller.outcome for caller in callers[:4]] == [0, 1, 2, 3]
    assert overload == "reject" or callers[4].outcome == 4


async def test_with_a_bound_of_0_one_call_after_the_other_is_admitted() -> None:
    batcher = bounded(Recorder(), 0, "reject")
    async with batcher as call:
        for number in range(5):
            assert await call(number) == number
    assert batcher.statistics().rejected == 0


@pytest.mark.parametrize("bound", [0, 3])
async def test_a_burst_into_an_idle_batcher_is_admitted_up_to_what_starts_at_once(bound):
    async with bounded(Recorder(), bound, "reject", max_batch_size=5) as call:
        for _ in range(2):
            await settle()
            got = await outcomes(*map(call, range(12)))
            rejected = [one for one in got if isinstance(one, shoal.errors.Overloaded)]
            assert len(rejected) == 12 - 5 - bound
            assert str(rejected[0]).endswith(
                f"{5 + bound} requests are waiting: max_queued_requests={bound}, and free slots "
                "take 5"
            )


async def test_a_stream_is_rejected_when_it_is_entered(steps: Steps) -> None:
    async with opening(bounded(steps.handler, 0, "reject")) as (_, call, tasks):
        (reader,) = await read_all(tasks, call("a"))
        await settle()
        late = call("b")
        with pytest.raises(shoal.errors.Overloaded):
            async with late:
                pass
        assert late.request is None
        steps.end()
    assert reader.outcome == "end"


async def test_a_stream_is_parked_where_overload_is_wait(steps: Steps) -> None:
    async with opening(bounded(steps.handler, 0, "wait")) as (batcher, call, tasks):
        readers = await read_all(tasks, call("a"), call("b"), call("c"))
        await settle()
        await readers[1].gone()
        assert batcher.statistics().parked == 1
        steps.end()
        steps.end()
    assert [reader.outcome for reader in readers] == ["end", LEFT, "end"]


async def test_lowering_the_bound_throws_nobody_out(held: Held) -> None:
    options: Any = {"max_queued_requests": 3, "max_batch_size": 1}
    async with plugged(held, "busy", **options) as (batcher, call, tasks):
        callers = await line_up(tasks, *map(call, range(3)))
        batcher.configure(max_queued_requests=1)
        with pytest.raises(shoal.errors.Overloaded, match=r"waiting, and max_queued_requests=1$"):
            await call(9)
    assert [caller.outcome for caller in callers] == [0, 1, 2]


async def test_raising_the_number_of_slots_lets_a_parked_caller_start(held: Held) -> None:
    async with opening(bounded(held, 0, "wait")) as (batcher, call, tasks):
        await launch(tasks, *map(call, range(2)))
        assert held.batches == [[0]]
        batcher.configure(max_concurrent_batches=2)
        await settle()
        assert held.batches == [[0], [1]]
        held.gate.set()


# A full queue that fails somebody else to admit a newcomer


LEVELS: dict[str, Any] = {
    "max_batch_size": 1,
    "max_queued_requests": 3,
    "priority_levels": 3,
    "priority_aging_s": None,
}


async def fill(tasks: Any, call: Any, *levels: int) -> list[Any]:
    """Occupies the slot, and queues a request of each level; its item is its name."""
    await launch(tasks, call("plug"))
    return [
        (await line_up(tasks, call.options(priority=level)(f"{level}:{place}")))[0]
        for place, level in enumerate(levels)
    ]


def ends(callers: list[Any]) -> list[Any]:
    """What became of callers: the item for an answer, the type of an error."""
    return [
        type(caller.outcome) if isinstance(caller.outcome, Exception) else caller.outcome
        for caller in callers
    ]


async def test_shed_oldest_fails_the_oldest_of_the_lowest_level(held: Held) -> None:
    async with opening(held, **LEVELS, overload="shed_oldest") as (batcher, call, tasks):
        callers = await fill(tasks, call, 3, 2, 3)
        callers += await launch(tasks, call.options(priority=1)("1:3"))
        assert ends(callers) == [shoal.errors.Overloaded, PENDING, PENDING, PENDING]
        callers += await line_up(tasks, call.options(priority=2)("2:4"))
        callers += await launch(tasks, call.options(priority=2)("2:5"))
        assert batcher.statistics().queued == 3
        held.gate.set()
    shed = shoal.errors.Overloaded
    assert ends(callers) == [shed, shed, shed, "1:3", "2:4", "2:5"]
    assert held.batches[1:] == [["1:3"], ["2:4"], ["2:5"]]
    statistics = batcher.statistics()
    assert (statistics.shed, statistics.rejected, statistics.finished) == (3, 0, 4)


async def test_shed_oldest_never_sheds_a_level_above_the_newcomers(held: Held) -> None:
    async with opening(held, **LEVELS, overload="shed_oldest") as (batcher, call, tasks):
        callers = await fill(tasks, call, 1, 1, 2)
        refusal = await outcome(call.options(priority=3)("3:3"))
        assert isinstance(refusal, shoal.errors.Overloaded)
        held.gate.set()
    assert ends(callers) == ["1:0", "1:1", "2:2"]
    statistics = batcher.statistics()
    assert (statistics.shed, statistics.rejected) == (0, 1)


async def test_shed_lowest_fails_the_newest_of_the_lowest_level_for_a_higher_one(held):
    async with opening(held, **LEVELS, overload="shed_lowest") as (batcher, call, tasks):
        callers = await fill(tasks, call, 3, 2, 3)
        callers += await launch(tasks, call.options(priority=2)("2:3"))
        assert ends(callers) == [PENDING, PENDING, shoal.errors.Overloaded, PENDING]
        refusal = await outcome(call.options(priority=3)("3:4"))  # an equal is no reason to shed
        assert isinstance(refusal, shoal.errors.Overloaded)
        callers += await line_up(tasks, call.options(priority=1)("1:5"))
        assert isinstance(await outcome(call.options(priority=2)("2:6")), shoal.errors.Overloaded)
        held.gate.set()
    assert ends(callers) == [shoal.errors.Overloaded, "2:1", shoal.errors.Overloaded, "2:3", "1:5"]
    statistics = batcher.statistics()
    assert (statistics.shed, statistics.rejected) == (2, 2)


@pytest.mark.parametrize("overload", ["shed_oldest", "shed_lowest"])
async def test_who_has_left_is_not_shed_and_makes_room(overload: Any, held: Held) -> None:
    async with opening(held, **LEVELS, overload=overload) as (batcher, call, tasks):
        callers = await fill(tasks, call, 3, 3, 3)
        callers[0].leave()
        await callers[2].gone()
        callers += await line_up(tasks, call.options(priority=1)("1:3"))
        callers += await line_up(tasks, call.options(priority=1)("1:4"))
        assert batcher.statistics().shed == 0
        callers += await line_up(tasks, call.options(priority=1)("1:5"))
        held.gate.set()
    assert ends(callers) == [LEFT, shoal.errors.Overloaded, LEFT, "1:3", "1:4", "1:5"]
    assert batcher.statistics().shed == 1


# A batcher whose handler has room for so many batches, whatever its slots say


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
    options: Any = {"capacity": places, "max_batch_size": 1, "max_concurrent_batches": 1}
    async with opening(places.handler(held), **options) as (_, call, tasks):
        await launch(tasks, *map(call, range(5)))
        assert len(held.batches) == 2
        places.change(1)
        await settle()
        assert len(held.batches) == 3
        held.gate.set()


@pytest.mark.parametrize(("room_at", "started_at"), [(5, 5), (1, 3)], ids=["after", "within"])
async def test_a_window_passes_while_there_is_no_room(room_at: float, started_at: float) -> None:
    places, recorder = Places(0), Recorder()
    options: Any = {"capacity": places, "batch_wait_timeout_s": 3}
    async with opening(places.handler(recorder), **options) as (_, call, tasks):
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
    options: Any = {"capacity": places, "graceful_shutdown_timeout_s": 5}
    async with running(places.handler(recorder), **options) as (batcher, call, tasks):
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

    async with opening(handler, capacity=places, fill=fill, max_batch_size=2) as (_, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        await anyio.sleep(3)
        assert begun_at == []
        places.change(1)
        await anyio.sleep(3)
        assert [caller.outcome for caller in callers] == [-1, -2]
    assert begun_at == [3]


async def test_room_that_shrinks_lets_what_runs_end() -> None:
    places, held = Places(2), Held()
    async with opening(places.handler(held), capacity=places, max_batch_size=1) as (_, call, tasks):
        callers = await launch(tasks, call(1), call(2), call(3))
        places.change(-1)  # one of the two that are taken goes when it is given back
        await held.release()
        assert [caller.outcome for caller in callers] == [1, 2, 3]
    assert places.free == 1
