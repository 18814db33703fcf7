"""`map`: many calls at once, one wake-up, results in the order of the items."""

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, line_up, outcome
from batching.scenes import Held, Recorder, Refusing, opening, running, settle


async def test_the_results_come_in_the_order_of_the_items() -> None:
    handler = Recorder(lambda item: 2 * item)
    async with shoal.Batcher(handler, max_batch_size=4) as call:
        assert await call.map(item for item in range(10)) == [2 * item for item in range(10)]
    assert handler.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class NoLength:
    """An iterable whose length is not known, as a progress bar around a generator."""

    def __len__(self) -> int:
        raise TypeError("object of type 'generator' has no len()")

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class AsyncWithLength:
    def __len__(self) -> int:
        return 2

    async def __aiter__(self) -> AsyncGenerator[int]:
        for item in (1, 2):
            yield item


@pytest.mark.parametrize("items", [NoLength(), AsyncWithLength()])
async def test_an_iterable_may_have_a_length_or_not(items: Any) -> None:
    async with shoal.Batcher(Recorder(lambda item: 2 * item)) as call:
        assert await call.map(items) == [2, 4]
        assert [result async for result in call.map(items)] == [2, 4]


async def test_several_parameters_take_an_iterable_each() -> None:
    async def handler(left: list[int], right: Any, scale: Any = 10) -> list[int]:
        return [a * b * c for a, b, c in zip(left, right, scale, strict=True)]

    async with shoal.Batcher(handler) as call:
        assert await call.map([1, 2], (4, 5), [1, 2]) == [4, 20]
        assert await call.map([1, 2], (4, 5)) == [40, 100]


async def test_a_map_of_nothing_is_a_checkpoint() -> None:
    async with shoal.Batcher(Recorder()) as call:
        assert await call.map([]) == []
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call.map([])
        assert scope.cancelled_caught


async def test_the_first_error_in_the_order_of_the_items_is_raised_once_all_have_ended() -> None:
    held = Held(lambda item: ValueError(item) if item in (1, 4) else item)
    async with shoal.Batcher(held, max_batch_size=3) as call, anyio.create_task_group() as tasks:
        (caller,) = await launch(tasks, call.map(range(6)))
        assert caller.outcome == PENDING
        held.gate.set()
    assert isinstance(caller.outcome, ValueError)
    assert caller.outcome.args == (1,)
    assert len(held.batches) == 2


@pytest.mark.parametrize("poison", [{0}, {0, 1, 2, 3}, {5}, set(range(6))])
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
    async with shoal.Batcher(Recorder(lambda item: 1 // item), max_batch_size=2) as call:
        got = await call.map([1, 1, 0, 1, 1], return_exceptions=True)
        assert [type(one) for one in got] == [int, int, ZeroDivisionError, ZeroDivisionError, int]
        assert got[2] is not got[3]
        with pytest.raises(ZeroDivisionError):
            await call.map([1, 0])


async def test_items_of_a_map_share_batches_with_other_calls(held: Held) -> None:
    async with opening(held, batch_wait_timeout_s=1) as (_, call, tasks):
        await line_up(tasks, call("a"), call.map(["b", "c"]), call("d"))
        held.gate.set()
    assert held.batches == [["a", "b", "c", "d"]]


async def test_tq9_a_map_that_is_cancelled_drops_all_of_its_calls(held: Held) -> None:
    async with opening(held, max_batch_size=2) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call.map(range(5)))
        await caller.gone()
        assert held.cancelled == [[0, 1]]
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running, statistics.cancelled) == (0, 0, 5)
        held.gate.set()
        assert await call(9) == 9
    assert caller.outcome == LEFT


@pytest.mark.parametrize("leave_first", [True, False])
async def test_a_map_may_be_left_in_the_tick_in_which_a_batch_of_it_is_answered(leave_first, held):
    async with opening(held, max_batch_size=2) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call.map(range(4)))
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


async def test_a_map_that_does_not_fit_is_rejected_whole(held: Held) -> None:
    async with opening(held, max_batch_size=2, max_queued_requests=3) as (batcher, call, tasks):
        (fits,) = await launch(tasks, call.map(range(5)))
        assert isinstance(await outcome(call.map([5])), shoal.errors.Overloaded)
        assert batcher.statistics().rejected == 1
        assert batcher.statistics().queued == 3
        held.gate.set()
    assert fits.outcome == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("way", ["request_timeout_s", "timeout_s"])
async def test_a_deadline_fails_what_has_not_ended(way: str) -> None:
    options: Any = {"request_timeout_s": 5} if way == "request_timeout_s" else {}
    batcher = shoal.Batcher(Refusing(run_s=3), max_batch_size=2, **options)
    async with batcher as call:
        bound = call.options(timeout_s=5) if way == "timeout_s" else call
        got = await bound.map(range(5), return_exceptions=True)
        assert got[:2] == [0, 1]
        assert [type(error) for error in got[2:]] == [shoal.errors.DeadlineExceeded] * 3
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await bound.map(range(5))
    statistics = batcher.statistics()
    assert (statistics.expired, statistics.cancelled, statistics.finished) == (6, 0, 4)


async def test_closing_fails_the_calls_of_a_map_that_are_left() -> None:
    batcher = shoal.Batcher(Held(), max_batch_size=2, graceful_shutdown_timeout_s=1)
    async with running(batcher) as (_, call, tasks):
        (caller,) = await launch(tasks, call.map(range(5), return_exceptions=True))
        await batcher.aclose()
    assert [type(error) for error in caller.outcome] == [shoal.errors.BatcherClosed] * 5


async def test_metadata_reaches_every_call_of_a_map() -> None:
    async def handler(items: list[int]) -> list[Any]:
        return [request.metadata["user"] for request in shoal.current_batch().requests]

    async with shoal.Batcher(handler) as call:
        assert await call.options(metadata={"user": 3}).map(range(3)) == [3, 3, 3]


def _fails(item: str) -> Any:
    """A function of one item that fails for some: it raises, or returns what is no cost or key."""
    if item == "raises":
        raise LookupError(item)
    return [] if item == "no cost or key" else 99 if item == "large" else 1


SHARINGS: list[dict[str, Any]] = [
    {},
    {"dedupe": True},
    {"cache": shoal.Cache(max_size=9, ttl_s=60)},
    {"request_timeout_s": 60},
]
OF_ONE_ITEM: list[tuple[dict[str, Any], dict[str, type[Exception]]]] = [
    (
        {"batch_size_fn": _fails},
        {"raises": LookupError, "no cost or key": TypeError, "large": shoal.errors.ItemTooLarge},
    ),
    ({"bucket_by": _fails}, {"raises": LookupError, "no cost or key": TypeError}),
    ({"dedupe": _fails}, {"raises": LookupError, "no cost or key": TypeError}),
]


@pytest.mark.parametrize("more", SHARINGS, ids=str)
@pytest.mark.parametrize(("option", "wrong"), OF_ONE_ITEM, ids=["cost", "bucket", "key"])
async def test_an_item_for_which_no_call_can_be_made_has_its_error_in_its_place(
    more: dict[str, Any], option: dict[str, Any], wrong: dict[str, type[Exception]]
) -> None:
    handler = Recorder()
    async with shoal.Batcher(handler, **more | option) as call:
        items = ["a", *wrong, "a", "raises", "b"]
        got = await call.map(items, return_exceptions=True)
        of_type = {item: wrong.get(item, str) for item in items}
        assert [type(one) for one in got] == [of_type[item] for item in items]
        assert got[0] == "a"
        errors = [one for one in got if isinstance(one, Exception)]
        assert len(set(map(id, errors))) == len(errors)
        every = await call.map(list(wrong), return_exceptions=True)
        assert [type(one) for one in every] == list(wrong.values())
        with pytest.raises(LookupError):
            await call.map(["a", "raises", "b"])
    assert {item for batch in handler.batches for item in batch} <= {"a", "b"}


async def test_an_item_that_can_not_be_split_has_its_error_in_its_place() -> None:
    def split(item: str, room: float) -> list[str]:
        if item == "raises":
            raise LookupError(item)
        return [] if item == "no parts" else [item[:2], item[2:]]

    def join(results: list[str]) -> str:
        if results[0] == "jo":
            raise ArithmeticError
        return "".join(results)

    options: Any = {"split": split, "join": join, "batch_size_fn": len, "max_batch_size": 4}
    async with shoal.Batcher(Recorder(), **options) as call:
        items = ["a", "raises", "parts", "no parts", "join!", "too large by far", "b"]
        got = await call.map(items, return_exceptions=True)
    assert [one if isinstance(one, str) else type(one) for one in got] == [
        *("a", LookupError, "parts", TypeError, ArithmeticError, shoal.errors.ItemTooLarge, "b")
    ]


async def test_options_that_change_when_the_calls_are_made_fail_single_items(held: Held) -> None:
    async with opening(held, max_batch_size=2, batch_wait_timeout_s=5) as (batcher, call, tasks):
        await line_up(tasks, call("x"))
        made = call.map(["a", "large", "b"], return_exceptions=True)
        batcher.configure(batch_size_fn=_fails, max_batch_size=9)
        held.gate.set()
        got = await made
    assert [type(one) for one in got] == [str, shoal.errors.ItemTooLarge, str]


@pytest.mark.parametrize("more", SHARINGS, ids=str)
async def test_a_map_that_is_refused_has_an_error_of_its_own_in_each_place(more, held):
    batcher = shoal.Batcher(held, max_batch_size=2, max_queued_requests=1, **more)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, call(0), call(1))
        await line_up(tasks, call(2))
        got = await call.map([3, 4], return_exceptions=True)
        assert [type(one) for one in got] == [shoal.errors.Overloaded] * 2
        assert got[0] is not got[1]
        held.gate.set()
    late = await batcher.call.map([3, 4], return_exceptions=True)
    assert [type(one) for one in late] == [shoal.errors.BatcherClosed] * 2


@pytest.mark.real_time
def test_blocking_calls_keep_errors_of_single_items_in_place() -> None:
    batcher = shoal.Batcher(Recorder(), batch_size_fn=_fails)
    with shoal.blocking(batcher) as call:
        got = call.map(["a", "large", "raises"], return_exceptions=True)
    assert [type(one) for one in got] == [str, shoal.errors.ItemTooLarge, LookupError]
