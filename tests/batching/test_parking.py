"""Waiters, on both event loops: one wait, woken once or cancelled, and nothing in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import shoal
from shoal.batching.calls.groups import GroupWaiter
from shoal.loops.this_loop import parking_of_this_loop
from shoal.testing import settle

if TYPE_CHECKING:
    from shoal.loops.parking import Parking

pytestmark = pytest.mark.anyio


class Waiter:
    """A task that waits on a waiter, of its own or of a request."""

    parks = False

    def __init__(self, parking: Parking) -> None:
        self.parking = parking
        self.request: Any = SimpleNamespace(waiter=None)
        self.scope = anyio.CancelScope()
        self.was_woken = False

    async def run(self) -> None:
        with self.scope:
            if self.parks:
                await self.parking.park(self.request)
            else:
                self.request.waiter = self.parking.new_waiter()
                await self.waiter
            self.was_woken = True

    @property
    def waiter(self) -> Any:
        return self.request.waiter


@pytest.fixture(params=[False, True], ids=["new_waiter", "park"], autouse=True)
def parks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiter, "parks", request.param)


async def waiters(tasks: anyio.abc.TaskGroup, parking: Parking, count: int) -> list[Waiter]:
    made = [Waiter(parking) for _ in range(count)]
    for waiter in made:
        tasks.start_soon(waiter.run)
    await settle()
    return made


def requests_of(*made: Waiter) -> list[Any]:
    return [waiter.request for waiter in made]


async def test_a_wait_lasts_until_it_is_woken() -> None:
    parking = parking_of_this_loop()
    async with anyio.create_task_group() as tasks:
        (waiter,) = await waiters(tasks, parking, 1)
        await anyio.sleep(3600)
        assert not waiter.was_woken
        assert not parking.is_spent(waiter.waiter)
        parking.wake(waiter.waiter)
        assert parking.is_spent(waiter.waiter)
    assert waiter.was_woken


async def test_a_second_wake_does_nothing() -> None:
    parking = parking_of_this_loop()
    async with anyio.create_task_group() as tasks:
        (waiter,) = await waiters(tasks, parking, 1)
        parking.wake(waiter.waiter)
        parking.wake(waiter.waiter)
        parking.wake_all(requests_of(waiter))
        await settle()
        parking.wake(waiter.waiter)
    assert waiter.was_woken


async def test_a_wake_after_a_cancellation_in_the_same_tick_does_nothing() -> None:
    parking = parking_of_this_loop()
    async with anyio.create_task_group() as tasks:
        (waiter,) = await waiters(tasks, parking, 1)
        waiter.scope.cancel()
        assert parking.is_spent(waiter.waiter)
        parking.wake(waiter.waiter)
        parking.wake_all(requests_of(waiter))
    assert not waiter.was_woken


async def test_a_cancellation_after_a_wake_in_the_same_tick_comes_too_late() -> None:
    parking = parking_of_this_loop()
    async with anyio.create_task_group() as tasks:
        (waiter,) = await waiters(tasks, parking, 1)
        parking.wake(waiter.waiter)
        waiter.scope.cancel()
    assert waiter.was_woken


async def test_many_are_woken_at_once() -> None:
    parking = parking_of_this_loop()
    async with anyio.create_task_group() as tasks:
        made = await waiters(tasks, parking, 5)
        made[2].scope.cancel()
        parking.wake_all(requests_of(*made))
    assert [waiter.was_woken for waiter in made] == [True, True, False, True, True]


async def test_who_was_cancelled_and_had_no_turn_yet_has_departed() -> None:
    parking = parking_of_this_loop()
    async with anyio.create_task_group() as tasks:
        made = await waiters(tasks, parking, 3)
        requests = requests_of(*made)
        assert parking.departed(requests) == []
        made[1].scope.cancel()
        assert parking.departed(requests) == [requests[1]]
        parking.wake_all(requests)


async def test_a_group_is_woken_after_its_last_request() -> None:
    parking = parking_of_this_loop()
    groups: list[GroupWaiter] = []
    woken: list[bool] = []

    async def wait() -> None:
        groups.append(GroupWaiter(parking, 3))
        await groups[0]
        woken.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settle()
        requests: list[Any] = [SimpleNamespace(waiter=groups[0])] * 3
        parking.wake_all(requests[:2])
        await settle()
        assert not woken
        assert parking.departed(requests) == []
        parking.wake_all(requests[2:])
    assert woken


async def test_a_group_whose_caller_was_cancelled_has_departed() -> None:
    parking = parking_of_this_loop()
    groups: list[GroupWaiter] = []

    async def wait() -> None:
        groups.append(GroupWaiter(parking, 3))
        await groups[0]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settle()
        requests: list[Any] = [SimpleNamespace(waiter=groups[0])] * 3
        tasks.cancel_scope.cancel()
        assert parking.departed(requests) == requests
        parking.wake_all(requests)


async def test_one_pass_lets_all_run_that_can() -> None:
    parking = parking_of_this_loop()
    ran: list[int] = []

    async def run(number: int) -> None:
        ran.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(run, number)
        await parking.one_pass()
        assert sorted(ran) == list(range(20))


async def test_the_clock_is_that_of_the_loop() -> None:
    parking = parking_of_this_loop()
    before = parking.now()
    assert before == anyio.current_time()
    await anyio.sleep(5)
    assert parking.now() == pytest.approx(before + 5)


def test_there_is_no_parking_without_a_loop() -> None:
    with pytest.raises(RuntimeError):
        parking_of_this_loop()


# The hand-offs of a call: what happens when its caller leaves in the tick in which it is answered.


class Scene:
    """A held batch of two callers."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.batches: list[list[int]] = []
        self.scopes: dict[int, anyio.CancelScope] = {}
        self.results: dict[int, int] = {}

    async def held(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        await self.gate.wait()
        return [2 * item for item in items]

    async def call(self, call: Any, item: int) -> None:
        with anyio.CancelScope() as self.scopes[item]:
            self.results[item] = await call(item)


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_a_caller_that_leaves_in_the_tick_of_its_result(leaves_first: bool) -> None:
    scene = Scene()
    batcher = shoal.Batcher(scene.held)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(scene.call, call, 1)
        tasks.start_soon(scene.call, call, 2)
        await settle()
        if leaves_first:
            scene.scopes[1].cancel()
            scene.gate.set()
        else:
            scene.gate.set()
            scene.scopes[1].cancel()
        await settle()
        now = batcher.statistics()
        assert scene.results[2] == 4
        assert (now.finished + now.cancelled, now.failed) == (2, 0)
        assert now.batches_running == 0


async def test_a_caller_that_leaves_in_the_tick_in_which_its_batch_is_formed() -> None:
    scene = Scene()
    batcher = shoal.Batcher(scene.held, max_batch_size=3, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(scene.call, call, 1)
        tasks.start_soon(scene.call, call, 2)
        await settle()
        scene.gate.set()
        batcher.flush()
        scene.scopes[1].cancel()
        await settle()
        assert scene.batches == [[2]]
        assert scene.results == {2: 4}
        assert batcher.statistics().cancelled == 1


async def test_a_batch_whose_callers_all_leave_as_it_is_formed_is_no_batch() -> None:
    scene = Scene()
    batcher = shoal.Batcher(scene.held, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(scene.call, call, 1)
        await settle()
        batcher.flush()
        scene.scopes[1].cancel()
        await settle()
        assert scene.batches == []
        assert batcher.statistics().batch_size.total == 0
        scene.gate.set()
        tasks.start_soon(scene.call, call, 2)
        await settle()
        batcher.flush()
        await settle()
        assert scene.results == {2: 4}


async def test_who_takes_the_place_of_one_that_departed_is_in_the_same_batch() -> None:
    scene = Scene()
    batcher = shoal.Batcher(scene.held, max_batch_size=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        for item in range(6):
            tasks.start_soon(scene.call, call, item)
            await settle()
        assert scene.batches == [[0]]
        scene.gate.set()
        scene.scopes[1].cancel()
        await settle()
        assert scene.batches == [[0], [2, 3], [4, 5]]


async def test_who_waits_for_room_gets_the_place_of_one_that_departed() -> None:
    scene = Scene()
    batcher = shoal.Batcher(scene.held, max_batch_size=1, max_queued_requests=0, overload="wait")
    async with batcher as call, anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(scene.call, call, item)
            await settle()
        scene.gate.set()
        scene.scopes[1].cancel()
        await settle()
        assert scene.batches == [[0], [2]]
        assert scene.results == {0: 0, 2: 4}
        tasks.cancel_scope.cancel()
