"""What user code was given it may change: nobody looks at that again, whatever it does."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import outcomes_in_order, read_all

pytestmark = pytest.mark.real_time

TWO: dict[str, Any] = {"batch_wait_timeout_s": 3600, "max_batch_size": 2}


def prompted_in_thread(texts: list[str]) -> list[str]:
    texts.insert(0, "prompt")
    return [text.upper() for text in texts]


async def prompted(texts: list[str]) -> list[str]:
    return prompted_in_thread(texts)


def emptied_in_thread(texts: list[str]) -> list[str]:
    results: list[str] = []
    while texts:
        results.append(texts.pop(0).upper())
    return results


async def emptied(texts: list[str]) -> list[str]:
    return emptied_in_thread(texts)


async def emptied_columns(texts: list[str], ends: list[str]) -> list[str]:
    results = [f"{text}{end}" for text, end in zip(texts, ends, strict=True)]
    texts.clear()
    ends.append("more")
    return results


@pytest.mark.parametrize("handler", [prompted, prompted_in_thread])
async def test_one_result_too_many_fails_however_long_the_list_has_become(handler: Any) -> None:
    async with shoal.Batcher(handler, **TWO) as call:
        errors = await outcomes_in_order(call("a"), call("b"))
    assert [type(error) for error in errors] == [shoal.errors.WrongBatchSize] * 2
    assert [(error.expected, error.got) for error in errors] == [(2, 3)] * 2


@pytest.mark.parametrize("handler", [emptied, emptied_in_thread])
async def test_a_list_may_be_emptied_while_its_results_are_made(handler: Any) -> None:
    async with shoal.Batcher(handler, **TWO) as call:
        assert await outcomes_in_order(call("a"), call("b")) == ["A", "B"]


async def test_the_lists_of_several_parameters_may_be_changed() -> None:
    async with shoal.Batcher(emptied_columns, **TWO) as call:
        assert await outcomes_in_order(call("a", "."), call("b", "!")) == ["a.", "b!"]


async def test_results_of_padding_are_dropped_though_the_list_is_emptied() -> None:
    given: list[Any] = []

    def pad(items: list[Any], size: int) -> list[Any]:
        given.append(items)
        made = [*items, *["pad"] * (size - len(items))]
        items.clear()
        return made

    options: dict[str, Any] = {"allowed_batch_sizes": [4], "pad": pad, "max_batch_size": 4}
    async with shoal.Batcher(emptied, **options) as call:
        assert await call.map(["a", "b"]) == ["A", "B"]
    assert given == [[]]


def emptied_steps_in_thread(items: list[str]) -> Iterator[list[Any]]:
    taken = list(items)
    items.clear()
    yield taken
    items.extend("more")
    yield taken


async def emptied_steps(items: list[str]) -> AsyncIterator[list[Any]]:
    for step in emptied_steps_in_thread(items):
        yield step


@pytest.mark.parametrize("handler", [emptied_steps, emptied_steps_in_thread])
async def test_steps_have_as_many_slots_as_there_are_requests(handler: Any) -> None:
    async with shoal.Batcher(handler, **TWO) as call, anyio.create_task_group() as tasks:
        readers = await read_all(tasks, call("a"), call("b"))
    assert [reader.items for reader in readers] == [["a", "a"], ["b", "b"]]


async def test_the_requests_of_a_batch_can_not_be_taken_away() -> None:
    async def handler(items: list[int]) -> list[int]:
        batch = shoal.current_batch()
        with pytest.raises(AttributeError):
            getattr(batch.requests, "clear")()  # noqa: B009
        raise ValueError

    async with shoal.Batcher(handler, **TWO) as call:
        errors = await outcomes_in_order(call(1), call(2))
    assert [type(error) for error in errors] == [ValueError] * 2


async def test_what_runs_again_runs_with_lists_as_they_were() -> None:
    batches: list[list[str]] = []

    async def handler(items: list[str]) -> list[str]:
        batches.append(list(items))
        results = [item.upper() for item in items]
        is_bad = "bad" in items
        items.clear()
        if is_bad:
            raise ValueError
        return results

    options: dict[str, Any] = {**TWO, "max_batch_size": 3, "isolate_errors": True}
    async with shoal.Batcher(handler, **options) as call:
        got = await outcomes_in_order(call("a"), call("bad"), call("c"))
    assert [got[0], type(got[1]), got[2]] == ["A", ValueError, "C"]
    assert batches == [["a", "bad", "c"], ["a"], ["bad", "c"], ["bad"], ["c"]]


async def test_the_parts_of_an_item_are_those_that_split_gave() -> None:
    parts: list[str] = []

    def split(item: str, room: float) -> list[str]:
        parts[:] = item
        return parts

    def cost(item: str) -> int:
        if len(item) == 1:
            parts.append("x")  # while they are gone through
            del parts[6:]
        return len(item)

    options: dict[str, Any] = {"split": split, "join": "".join, "batch_size_fn": cost}
    async with shoal.Batcher(emptied, max_batch_size=2, **options) as call:
        assert await call("abc") == "ABC"
