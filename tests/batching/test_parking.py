"""Waiters, on both event loops: one wait, woken once or cancelled, and nothing in between."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from threading import Thread
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from batching.callers import LEFT, launch, line_up
from batching.scenes import Held, opening, plugged, settle
from shoal.batching.calls.groups import GroupWaiter
from shoal.loops.parking import Parking
from shoal.loops.this_loop import parking_of_this_loop


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


@asynccontextmanager
async def parked(count: int) -> AsyncGenerator[tuple[Parking, list[Waiter]]]:
    parking = parking_of_this_loop()
    made = [Waiter(parking) for _ in range(count)]
    async with anyio.create_task_group() as tasks:
        for waiter in made:
            tasks.start_soon(waiter.run)
        await settle()
        yield parking, made


def requests_of(made: list[Waiter]) -> list[Any]:
    return [waiter.request for waiter in made]


async def test_a_wait_lasts_until_it_is_woken_and_a_second_wake_does_nothing() -> None:
    async with parked(1) as (parking, made):
        (waiter,) = made
        await anyio.sleep(3600)
        assert not waiter.was_woken
        assert not parking.is_spent(waiter.waiter)
        parking.wake(waiter.waiter)
        assert parking.is_spent(waiter.waiter)
        parking.wake(waiter.waiter)
        parking.wake_all(requests_of(made))
        await settle()
        parking.wake(waiter.waiter)
    assert waiter.was_woken


async def test_a_wake_after_a_cancellation_in_the_same_tick_does_nothing() -> None:
    async with parked(1) as (parking, made):
        (waiter,) = made
        waiter.scope.cancel()
        assert parking.is_spent(waiter.waiter)
        parking.wake(waiter.waiter)
        parking.wake_all(requests_of(made))
    assert not waiter.was_woken


async def test_a_cancellation_after_a_wake_in_the_same_tick_comes_too_late() -> None:
    async with parked(1) as (parking, (waiter,)):
        parking.wake(waiter.waiter)
        waiter.scope.cancel()
    assert waiter.was_woken


async def test_who_was_cancelled_and_had_no_turn_yet_has_departed() -> None:
    async with parked(3) as (parking, made):
        requests = requests_of(made)
        assert parking.departed(requests) == []
        made[1].scope.cancel()
        assert parking.departed(requests) == [requests[1]]
        parking.wake_all(requests)
    assert [waiter.was_woken for waiter in made] == [True, False, True]


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_group_is_woken_after_its_last_request_unless_its_caller_has_left(leaves):
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
        if leaves:
            tasks.cancel_scope.cancel()
            assert parking.departed(requests) == requests
        parking.wake_all(requests[2:])
    assert woken == ([] if leaves else [True])


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


async def test_another_thread_does_not_have_the_task_that_runs_here() -> None:
    task_here = parking_of_this_loop().task_here
    tasks: list[object] = []
    thread = Thread(target=lambda: tasks.append(task_here()))
    thread.start()
    thread.join()
    assert tasks == [None]


def test_there_is_no_parking_without_a_loop() -> None:
    with pytest.raises(RuntimeError):
        parking_of_this_loop()


# The hand-offs of a call: what happens when its caller leaves in the tick in which it is answered.


async def test_a_batch_whose_callers_all_leave_as_it_is_formed_is_no_batch(recorder):
    async with opening(recorder, batch_wait_timeout_s=None) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(1))
        batcher.flush()
        await caller.gone()
        assert recorder.batches == []
        assert batcher.statistics().batch_size.total == 0
        (caller,) = await line_up(tasks, call(2))
        batcher.flush()
        await settle()
        assert caller.outcome == 2


async def test_who_takes_the_place_of_one_that_departed_is_in_the_same_batch(held: Held) -> None:
    async with plugged(held, 0, max_batch_size=2) as (_, call, tasks):
        callers = await line_up(tasks, *map(call, range(1, 6)))
        held.gate.set()
        await callers[0].gone()
        assert held.batches == [[0], [2, 3], [4, 5]]


async def test_who_waits_for_room_gets_the_place_of_one_that_departed(held: Held) -> None:
    options: Any = {"max_batch_size": 1, "max_queued_requests": 0, "overload": "wait"}
    async with plugged(held, 0, **options) as (_, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        held.gate.set()
        await callers[0].gone()
        assert held.batches == [[0], [2]]
        assert [caller.outcome for caller in callers] == [LEFT, 2]


async def test_a_map_whose_caller_departed_is_not_run(held: Held) -> None:
    async with plugged(held, 0, max_batch_size=2) as (batcher, call, tasks):
        (mapped,) = await line_up(tasks, call.map([1, 2]))
        held.gate.set()
        mapped.leave()
        await settle()
        assert held.batches == [[0]]
        assert (mapped.outcome, batcher.statistics().cancelled) == (LEFT, 2)
