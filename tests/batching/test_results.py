"""Results: one for each request, in order, in anything sized and indexable."""

import logging
import re
import time
from collections import UserDict, UserString, deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import anyio
import numpy as np
import pytest
from starlette.exceptions import HTTPException

import shoal
from batching.callers import outcomes, outcomes_in_order
from batching.scenes import OfUnhashableKind, Records, Refusing, opening
from shoal.testing import settle


class Computed:
    """Sized and indexable, and no more: it does not say where it ends."""

    def __init__(self, items: list[int]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> int:
        if index >= len(self._items):
            raise AssertionError(f"asked for {index} of {len(self._items)}")
        return self._items[index]


def returning(make: Any) -> Any:
    async def handler(items: list[Any]) -> Any:
        return make(items)

    return handler


async def test_rows_of_an_array_are_results() -> None:
    async with shoal.Batcher(returning(lambda items: np.outer(items, [1, 10]))) as call:
        got = await outcomes(call(1), call(2))
    assert [list(row) for row in got] == [[1, 10], [2, 20]]


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, ValueError, OfUnhashableKind()])
async def test_any_value_is_a_result_even_an_exception_class(value: Any) -> None:
    async with shoal.Batcher(returning(lambda items: [value] * len(items))) as call:
        assert await call(1) is value


async def test_code_of_a_result_that_changes_the_handlers_list_harms_nobody() -> None:
    kept: list[Any] = []

    class Clearing(type):
        def __hash__(cls) -> int:
            kept.clear()
            return 0

    class Result(metaclass=Clearing):
        pass

    async def handler(items: list[int]) -> list[Any]:
        kept.extend(Result() for _ in items)
        return kept

    async with shoal.Batcher(handler, max_batch_size=2) as call:
        assert [type(one) for one in await outcomes(call(1), call(2))] == [Result, Result]
    assert not kept


@pytest.mark.parametrize("got", [0, 1, 2, 4, 9])
@pytest.mark.parametrize("kind", [list, tuple, np.array])
async def test_a_wrong_length_fails_every_caller_and_names_both_numbers(got, kind):
    async with shoal.Batcher(returning(lambda _: kind([0] * got)), max_batch_size=3) as call:
        errors = await outcomes(call(1), call(2), call(3))
    assert len(set(map(id, errors))) == 3
    for error in errors:
        assert type(error) is shoal.errors.WrongBatchSize
        assert isinstance(error, ValueError)
        assert (error.expected, error.got) == (3, got)
        assert f"3 items and gave back {got} results" in str(error)


@pytest.mark.parametrize(
    "results", [None, 3, "ab", b"ab", {1: 2, 3: 4}, {1, 2}, object(), iter([1, 2]), np.array(1)]
)
async def test_what_is_not_one_result_for_each_is_a_type_error_of_every_caller(results):
    async with shoal.Batcher(returning(lambda _: results)) as call:
        for error in await outcomes(call(1), call(2)):
            assert type(error) is shoal.errors.WrongResultType
            assert isinstance(error, TypeError)
            assert type(results).__name__ in str(error)
            assert "2 items" in str(error)


class Pair(NamedTuple):
    values: list[int]
    indices: list[int]


class Triple(tuple[int, ...]):  # noqa: SLOT001
    """A tuple of its own kind, without names."""


class Frame:
    """Has what pandas' tables have: the length is that of the rows, the elements are columns."""

    columns: Any = None

    def __init__(self, columns: dict[str, list[int]]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def to_dict(self, _orient: str) -> list[dict[str, int]]:
        raise NotImplementedError


class Exchanged(Frame):
    """A table that has no more in common with others than the protocol of tables."""

    def __dataframe__(self) -> None:
        raise NotImplementedError


class PolarsFrame(Frame):
    to_dicts = None


class ArrowTable:
    column_names: Any = None
    to_pylist = None

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[int]:
        return [1, 2]


class Rows:
    """Has the names of its columns, as Hugging Face's datasets have, and holds rows."""

    column_names = ("a", "b")

    def __init__(self, items: list[int]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def to_dict(self) -> None:
        raise NotImplementedError


TWO_COLUMNS = {"a": [1, 2], "b": [3, 4]}
NOT_RESULTS = [
    (
        Frame(TWO_COLUMNS),
        r"Frame; a table has columns: use `\.to_dict\('records'\)` or a list of rows",
    ),
    (Exchanged(TWO_COLUMNS), r"`\.to_dict\('records'\)` or a list of rows"),
    (PolarsFrame(TWO_COLUMNS), r"`\.to_dicts\(\)` or a list of rows"),
    (ArrowTable(), r"`\.to_pylist\(\)` or a list of rows"),
    (Pair([1, 2], [0, 1]), r"Pair; a named tuple has fields.* list\(zip\(\*results\)\)"),
    (time.gmtime(0), "struct_time; a named tuple has fields"),  # torch.max returns such a tuple
    (TWO_COLUMNS, "dict; a mapping has keys, not rows"),
    (UserDict(TWO_COLUMNS), "UserDict; a mapping has keys, not rows"),
    (TWO_COLUMNS.keys(), "dict_keys; a set has no order"),
    (frozenset({1, 2}), "frozenset; a set has no order"),
    ("ab", "str; put it into a list"),
    (UserString("ab"), "UserString; put it into a list"),
    (memoryview(b"ab"), "memoryview; put it into a list"),
    (zip([1, 2], [3, 4], strict=True), r"zip; use list\(\.\.\.\) of it"),
]


@pytest.mark.parametrize(
    "make",
    [
        *(list, tuple, deque, np.array, Computed, lambda items: range(len(items))),
        *(Triple, Rows, lambda items: dict(enumerate(items)).values()),
    ],
)
async def test_anything_sized_and_indexable_holds_results(make: Any) -> None:
    async with shoal.Batcher(returning(make), batch_wait_timeout_s=1) as call:
        assert await outcomes_in_order(call(0), call(1), call(2)) == [0, 1, 2]


@pytest.mark.parametrize(("results", "advice"), NOT_RESULTS)
async def test_a_container_of_something_else_is_refused_with_advice(results, advice):
    async def in_steps(items: list[Any]) -> Any:
        yield results

    async with shoal.Batcher(returning(lambda _: results)) as call:
        for error in await outcomes(call(1), call(2)):
            assert type(error) is shoal.errors.WrongResultType
            assert re.search(advice, str(error))
    async with shoal.Batcher(in_steps) as stream:
        with pytest.raises(shoal.errors.WrongResultType, match=advice) as caught:
            async with stream(1) as steps:
                await anext(steps)
        assert "yield a list of 1 slots" in str(caught.value)


@pytest.mark.real_time
async def test_a_plain_function_that_returns_an_awaitable_is_told_to_be_async() -> None:
    async def later() -> list[int]:
        return [1]

    async with shoal.Batcher(lambda items: later()) as call:
        with pytest.raises(shoal.errors.WrongResultType, match="make it an async function"):
            await call(1)


@pytest.mark.parametrize("kind", [list, tuple, lambda values: np.array(values, dtype=object)])
async def test_an_exception_in_a_slot_fails_that_caller_alone(kind: Any) -> None:
    handler = returning(lambda _: kind([KeyError("a"), 2, KeyError("c"), 4]))
    async with shoal.Batcher(handler, batch_wait_timeout_s=1) as call:
        got = await outcomes_in_order(*map(call, range(4)))
    assert got[1::2] == [2, 4]
    assert [type(error) for error in got[::2]] == [KeyError, KeyError]
    assert [error.args for error in got[::2]] == [("a",), ("c",)]


@pytest.mark.parametrize("size", [1, 2], ids=["two batches", "two slots"])
async def test_one_exception_in_two_slots_is_not_shared(size: int) -> None:
    shared = ValueError("both")
    handler = returning(lambda items: [shared] * len(items))
    async with shoal.Batcher(handler, max_batch_size=size) as call:
        first, second = await outcomes(call(1), call(2))
    assert first is not second
    assert [first.args, second.args] == [("both",), ("both",)]


# What code declines by an ``HTTPException`` below 500 is an outcome of its own, and no failure


DECLINED = {
    "no": HTTPException(404),
    "large": shoal.errors.ItemTooLarge("x"),
    "moved": HTTPException(308),
}
FAILED = {"bad": HTTPException(503), "odd": HTTPException(200), "bug": KeyError("x")}
ITEMS = [*DECLINED, *FAILED, "fine"]


def outcome_of(item):
    return (DECLINED | FAILED).get(item, item)


async def plain(items: list[str]) -> list[str | Exception]:
    return [outcome_of(item) for item in items]


async def raising(items: list[str]) -> list[str]:
    if isinstance(error := outcome_of(items[0]), Exception):
        raise error
    return items


async def streamed(items: list[str]):
    yield [outcome_of(item) for item in items]


async def opened(batch: shoal.OpenBatch[str, str]) -> None:
    async for request in batch:
        outcome = outcome_of(request.item)
        if isinstance(outcome, Exception):
            request.fail(outcome)
        else:
            request.finish(outcome)


async def read(call, item):
    result = call(item)
    if not hasattr(result, "__aiter__"):
        return await result
    async with result as stream:
        return [one async for one in stream]


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (plain, {"max_batch_size": 1}),
        (plain, {"max_batch_size": 7, "batch_wait_timeout_s": 1}),
        (raising, {"max_batch_size": 1}),
        (raising, {"max_batch_size": 1, "isolate_errors": True}),
        (streamed, {"max_batch_size": 7, "batch_wait_timeout_s": 1}),
        (opened, {"fill": "open", "max_batch_size": 1}),
        (opened, {"fill": "continuous", "max_batch_size": 7}),
    ],
)
async def test_what_the_handler_declines_is_counted_apart(handler, options):
    batcher = shoal.Batcher(handler, **options)
    seen = Records()
    batcher.observers.add(seen)
    errors = {}

    async def ask(item):
        try:
            await read(call, item)
        except Exception as error:
            errors[item] = type(error)

    async with batcher as call, anyio.create_task_group() as tasks:
        for item in ITEMS:
            tasks.start_soon(ask, item)
    found = batcher.statistics()
    assert (found.finished, found.declined, found.failed, found.cancelled) == (1, 3, 3, 0)
    assert errors == {item: type(error) for item, error in (DECLINED | FAILED).items()}
    for name in ("finished", "declined", "failed", "cancelled"):
        assert sum(getattr(one, name) for one in seen.records) == getattr(found, name)
    for record in seen.records:  # an error is what failed a request
        assert (record.error is None) == (not record.failed)


async def test_all_calls_that_share_a_declined_one_are_declined():
    batcher = shoal.Batcher(Refusing([HTTPException(404)], run_s=1), dedupe=True)
    async with batcher as call:
        caught = await outcomes(call("a"), call("a"), call("a"))
    found = batcher.statistics()
    assert (found.declined, found.failed, found.shared) == (3, 0, 2)
    assert [type(error) for error in caught] == [HTTPException] * 3
    assert len(set(map(id, caught))) == 3


async def test_what_is_declined_while_a_batcher_closes_is_counted_apart(caplog):
    caplog.set_level(logging.INFO, "shoal")
    began, go = anyio.Event(), anyio.Event()

    async def handler(items: list[str]) -> list[str | Exception]:
        began.set()
        await go.wait()
        return await plain(items)

    async with opening(handler, max_batch_size=9) as (batcher, call, tasks):
        tasks.start_soon(partial(call.map, ["no", "bad", "fine"], return_exceptions=True))
        await began.wait()
        tasks.start_soon(batcher.aclose)
        await settle()
        go.set()
    assert await batcher.aclose() == shoal.statistics.ClosingCounts(1, 1, 0, declined=1)
    assert "(1 failed, 0 cancelled or out of time, 1 declined)" in caplog.text
