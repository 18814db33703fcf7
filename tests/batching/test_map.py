"""`map`: many calls at once, one wake-up, results in the order of the items."""

from __future__ import annotations

from itertools import chain
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import LEFT, PENDING, Held, Recorder, line_up, outcome, settle

pytestmark = pytest.mark.anyio


async def test_the_results_come_in_the_order_of_the_items() -> None:
    handler = Recorder(lambda item: 2 * item)
    async with shoal.Batcher(handler, max_batch_size=4) as call:
        assert await call.map(range(10)) == [2 * item for item in range(10)]
    assert handler.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_any_iterable_will_do() -> None:
    async with shoal.Batcher(Recorder()) as call:
        assert await call.map(item for item in "abc") == ["a", "b", "c"]


async def test_several_parameters_take_an_iterable_each() -> None:
    async def handler(left: list[int], right: list[int]) -> list[int]:
        return [a * b for a, b in zip(left, right, strict=True)]

    async with shoal.Batcher(handler) as call:
        assert await call.map([1, 2, 3], (4, 5, 6)) == [4, 10, 18]
        with pytest.raises(ValueError):
            await call.map([1, 2], [3])
        with pytest.raises(TypeError):
            await call.map([1, 2])


async def test_left_out_parameters_get_their_defaults() -> None:
    async def handler(left: list[int], right: Any = 10) -> list[int]:
        return [a * b for a, b in zip(left, right, strict=True)]

    async with shoal.Batcher(handler) as call:
        assert await call.map([1, 2]) == [10, 20]


async def test_a_map_of_nothing_is_a_checkpoint() -> None:
    async with shoal.Batcher(Recorder()) as call:
        assert await call.map([]) == []
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call.map([])
        assert scope.cancelled_caught


async def test_the_first_error_in_the_order_of_the_items_is_raised_once_all_have_ended() -> None:
    held = Held(lambda item: ValueError(item) if item in (1, 4) else item)
    async with (
        shoal.Batcher(held, max_batch_size=3) as call,
        anyio.create_task_group() as tasks,
    ):
        (caller,) = await line_up(tasks, call.map(range(6)))
        await settle()
        assert caller.outcome == PENDING
        held.gate.set()
    assert isinstance(caller.outcome, ValueError)
    assert caller.outcome.args == (1,)
    assert len(held.batches) == 2


@pytest.mark.parametrize("poison", [{0}, {0, 1}, {0, 1, 2, 3}, {5}, set(range(6))])
async def test_return_exceptions_keeps_errors_in_place(poison: set[int]) -> None:
    handler = Recorder(lambda item: ValueError(item) if item in poison else item)
    async with shoal.Batcher(handler, max_batch_size=2) as call:
        got = await call.map(range(6), return_exceptions=True)
    for item in range(6):
        if item in poison:
            assert isinstance(got[item], ValueError)
            assert got[item].args == (item,)
        else:
            assert got[item] == item
    assert handler.batches == [[0, 1], [2, 3], [4, 5]]


async def test_a_failed_batch_fails_its_items_alone() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [1 // item for item in items]

    async with shoal.Batcher(handler, max_batch_size=2) as call:
        got = await call.map([1, 1, 0, 1, 1], return_exceptions=True)
        assert [type(one) for one in got] == [int, int, ZeroDivisionError, ZeroDivisionError, int]
        assert got[2] is not got[3]
        with pytest.raises(ZeroDivisionError):
            await call.map([1, 0])


async def test_isolation_works_in_a_map() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [1 // item for item in items]

    async with shoal.Batcher(handler, isolate_errors=True, max_batch_size=4) as call:
        got = await call.map([1, 0, 1, 1, 1], return_exceptions=True)
    assert [type(one) for one in got] == [int, ZeroDivisionError, int, int, int]


async def test_items_of_a_map_share_batches_with_other_calls() -> None:
    held = Held()
    async with (
        shoal.Batcher(held, batch_wait_timeout_s=1) as call,
        anyio.create_task_group() as tasks,
    ):
        await line_up(tasks, call("a"), call.map(["b", "c"]), call("d"))
        held.gate.set()
    assert held.batches == [["a", "b", "c", "d"]]


async def test_a_map_that_is_cancelled_drops_all_of_its_calls() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        (caller,) = await line_up(tasks, call.map(range(5)))
        await settle()
        caller.leave()
        await settle()
        assert held.cancelled == [[0, 1]]
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running, statistics.cancelled) == (0, 0, 5)
        held.gate.set()
        assert await call(9) == 9
    assert caller.outcome == LEFT


@pytest.mark.parametrize("leave_first", [True, False])
async def test_a_map_may_be_left_in_the_tick_in_which_a_batch_of_it_is_answered(
    leave_first: bool,
) -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        (caller,) = await line_up(tasks, call.map(range(4)))
        await settle()
        if leave_first:
            caller.leave()
        held.gate.set()
        if not leave_first:
            caller.leave()
        await settle()
        assert await call(9) == 9
    statistics = batcher.statistics()
    assert statistics.finished + statistics.cancelled == 5
    assert statistics.running == statistics.queued == 0


async def test_a_map_that_does_not_fit_is_rejected_whole() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=2, max_queued_requests=3)
    async with batcher as call, anyio.create_task_group() as tasks:
        (fits,) = await line_up(tasks, call.map(range(5)))
        await settle()
        assert isinstance(await outcome(call.map([5])), shoal.Overloaded)
        assert batcher.statistics().rejected == 1
        assert batcher.statistics().queued == 3
        held.gate.set()
    assert fits.outcome == [0, 1, 2, 3, 4]


async def test_a_map_waits_for_room_where_overload_is_wait() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=2, max_queued_requests=1, overload="wait")
    async with batcher as call, anyio.create_task_group() as tasks:
        first, second = await line_up(tasks, call.map(range(7)), call(7))
        await settle()
        assert batcher.statistics().parked > 0
        held.gate.set()
    assert (first.outcome, second.outcome) == (list(range(7)), 7)
    assert list(chain(*held.batches)) == list(range(8))


@pytest.mark.parametrize("way", ["request_timeout_s", "timeout_s"])
async def test_a_deadline_fails_what_has_not_ended(way: str) -> None:
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(3)
        return items

    options: Any = {"request_timeout_s": 5} if way == "request_timeout_s" else {}
    batcher = shoal.Batcher(handler, max_batch_size=2, **options)
    async with batcher as call:
        bound = call.options(timeout_s=5) if way == "timeout_s" else call
        got = await bound.map(range(5), return_exceptions=True)
        assert got[:2] == [0, 1]
        assert [type(error) for error in got[2:]] == [shoal.DeadlineExceeded] * 3
        with pytest.raises(shoal.DeadlineExceeded):
            await bound.map(range(5))
    statistics = batcher.statistics()
    assert (statistics.expired, statistics.cancelled, statistics.finished) == (6, 0, 4)


async def test_closing_fails_the_calls_of_a_map_that_are_left() -> None:
    batcher = shoal.Batcher(Held(), max_batch_size=2, graceful_shutdown_timeout_s=1)
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        (caller,) = await line_up(tasks, call.map(range(5), return_exceptions=True))
        await settle()
        await batcher.aclose()
    assert [type(error) for error in caller.outcome] == [shoal.BatcherClosed] * 5


async def test_metadata_reaches_every_call_of_a_map() -> None:
    async def handler(items: list[int]) -> list[Any]:
        return [request.metadata["user"] for request in shoal.current_batch().requests]

    async with shoal.Batcher(handler) as call:
        assert await call.options(metadata={"user": 3}).map(range(3)) == [3, 3, 3]
