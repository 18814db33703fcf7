"""Items larger than the room that is left: divided into parts, and joined from their results."""

from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, line_up, outcome, outcomes, outcomes_in_order
from batching.scenes import Held, Recorder, opening, plugged, settle


def divide(text: str, room: float) -> list[str]:
    """Parts of at most four letters, the first of which fills the room."""
    first, rest = text[: int(room)], text[int(room) :]
    return [first, *(rest[place : place + 4] for place in range(0, len(rest), 4))]


SPLIT: dict[str, Any] = {
    "max_batch_size": 4,
    "batch_size_fn": len,
    "split": divide,
    "join": "".join,
}


def upper(text: str) -> str:
    return text.upper()


async def test_an_item_that_fits_is_not_divided() -> None:
    handler = Recorder(upper)
    async with shoal.Batcher(handler, **SPLIT, batch_wait_timeout_s=1) as call:
        assert await outcomes_in_order(call("ab"), call("cd")) == ["AB", "CD"]
    assert handler.batches == [["ab", "cd"]]


async def test_an_item_larger_than_a_batch_is_divided_and_its_results_joined_in_order() -> None:
    handler = Recorder(upper)
    async with shoal.Batcher(handler, **SPLIT) as call:
        assert await call("abcdefghij") == "ABCDEFGHIJ"
    assert handler.batches == [["abcd"], ["efgh"], ["ij"]]


async def test_parts_run_side_by_side_where_there_are_slots() -> None:
    async def handler(items: list[str]) -> list[str]:
        await anyio.sleep(4 - len(items[0]) / 2)  # the last part ends last, the first first
        return [upper(item) for item in items]

    async with shoal.Batcher(handler, **SPLIT, max_concurrent_batches=3) as call:
        started = anyio.current_time()
        assert await call("abcdefghij") == "ABCDEFGHIJ"
        assert anyio.current_time() - started == pytest.approx(3)


async def test_the_first_part_fills_the_batch_that_is_being_gathered() -> None:
    handler = Recorder(upper)
    async with opening(handler, **SPLIT, batch_wait_timeout_s=1) as (_, call, tasks):
        callers = await line_up(tasks, call("abc"))
        callers += await launch(tasks, call("defghi"))
        assert handler.batches == [["abc", "d"], ["efgh"]]
        assert [caller.outcome for caller in callers] == ["ABC", PENDING]
        callers += await line_up(tasks, call("jk"))
    assert [caller.outcome for caller in callers] == ["ABC", "DEFGHI", "JK"]
    assert handler.batches[2] == ["i", "jk"]


async def test_the_room_is_that_of_the_items_own_bucket() -> None:
    handler = Recorder(upper)
    options: Any = {**SPLIT, "batch_wait_timeout_s": 1, "bucket_by": str.islower}
    async with opening(handler, **options) as (_, call, tasks):
        await line_up(tasks, call("ab"))
        await line_up(tasks, call("WXY"))
        await line_up(tasks, call("cdef"))
    assert handler.batches == [["ab", "cd"], ["WXY"], ["ef"]]


# Errors


@pytest.mark.parametrize("bad", ["abcd", "efgh", "ij"])
async def test_a_part_that_fails_fails_its_item_and_drops_the_parts_in_the_queue(bad: str) -> None:
    handler = Recorder(lambda part: KeyError(part) if part == bad else part)
    async with shoal.Batcher(handler, **SPLIT) as call:
        error = await outcome(call("abcdefghij"))
        assert isinstance(error, KeyError)
        assert error.args == (bad,)
        assert await call("abcd" if bad != "abcd" else "x") in ("abcd", "x")
    parts = ["abcd", "efgh", "ij"]
    ran = list(chain(*handler.batches))[:-1]
    assert ran == parts[: parts.index(bad) + 1]


async def test_a_part_that_fails_cancels_the_parts_in_the_handler() -> None:
    cancelled: list[list[str]] = []

    async def handler(items: list[str]) -> list[str]:
        try:
            await anyio.sleep(1 if items == ["abcd"] else 60)
        except anyio.get_cancelled_exc_class():
            cancelled.append(items)
            raise
        raise KeyError(items[0])

    batcher = shoal.Batcher(handler, **SPLIT, max_concurrent_batches=2)
    async with batcher as call:
        assert isinstance(await outcome(call("abcdefghij")), KeyError)
        assert (batcher.statistics().running, batcher.statistics().queued) == (0, 0)
        await settle()
        assert cancelled == [["efgh"]]


@pytest.mark.parametrize(
    ("split", "error"),
    [
        pytest.param(lambda text, room: 1 / 0, ZeroDivisionError, id="raises"),
        pytest.param(lambda text, room: [], TypeError, id="no parts"),
        pytest.param(lambda text, room: None, TypeError, id="None"),
        pytest.param(lambda text, room: text, TypeError, id="text"),
        pytest.param(lambda text, room: [text], shoal.errors.ItemTooLarge, id="a part as large"),
        pytest.param(
            lambda text, room: ["a", text], shoal.errors.ItemTooLarge, id="a later part too large"
        ),
    ],
)
async def test_a_broken_split_fails_its_caller_alone(split, error, recorder):
    batcher = shoal.Batcher(recorder, **{**SPLIT, "split": split}, batch_wait_timeout_s=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        (before,) = await line_up(tasks, call("a"))
        with pytest.raises(error):
            await call("bcdefg")
        with pytest.raises(error):
            await call.map(["b", "cdefgh"])
        (after,) = await line_up(tasks, call("b"))
    assert (before.outcome, after.outcome) == ("a", "b")
    assert recorder.batches == [["a", "b"]]


async def test_a_broken_join_fails_its_caller_alone(recorder: Recorder) -> None:
    def join(results: list[str]) -> str:
        raise ZeroDivisionError

    async with shoal.Batcher(recorder, **{**SPLIT, "join": join}, batch_wait_timeout_s=1) as call:
        results = await outcomes(call("abcdef"), call("g"))
        assert isinstance(results[0], ZeroDivisionError)
        assert results[1] == "g"
        results = await call.map(["abcdef", "g"], return_exceptions=True)
        assert isinstance(results[0], ZeroDivisionError)
        assert results[1] == "g"


async def test_a_queue_without_room_for_all_parts_takes_none(held: Held) -> None:
    async with plugged(held, **SPLIT, max_queued_requests=2) as (batcher, call, tasks):
        assert isinstance(await outcome(call("abcdefghij")), shoal.errors.Overloaded)
        assert batcher.statistics().queued == 0
        (caller,) = await line_up(tasks, call("abcdef"))
    assert caller.outcome == "abcdef"
    assert held.batches == [["plug"], ["abcd"], ["ef"]]


# Leaving, time and options


async def test_who_leaves_takes_all_parts_along(held: Held) -> None:
    async with opening(held, **SPLIT) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call("abcdefghij"))
        assert (batcher.statistics().running, batcher.statistics().queued) == (1, 2)
        await caller.gone()
        assert caller.outcome == LEFT
        assert (batcher.statistics().running, batcher.statistics().queued) == (0, 0)
    assert held.cancelled == [["abcd"]]
    assert held.batches == [["abcd"]]


async def test_all_parts_have_the_deadline_of_their_item(held: Held) -> None:
    async with opening(held, **SPLIT) as (batcher, call, tasks):
        (caller,) = await line_up(tasks, call.options(timeout_s=5)("abcdefghij"))
        await anyio.sleep(6)
        assert isinstance(caller.outcome, shoal.errors.DeadlineExceeded)
        assert caller.ended_at == pytest.approx(5)
        await settle()
        assert (batcher.statistics().running, batcher.statistics().queued) == (0, 0)


async def test_all_parts_are_due_when_the_callers_scope_ends() -> None:
    handler = Recorder(upper)
    options = {"batch_wait_timeout_s": 60, "use_scope_deadline": True}
    async with shoal.Batcher(handler, **SPLIT, **options) as call:
        with anyio.fail_after(10):
            assert await call("abcdef") == "ABCDEF"
        with anyio.fail_after(10):
            assert await call.map(["abcdef"]) == ["ABCDEF"]
    assert handler.batches == [["abcd"], ["ef"]] * 2


async def test_all_parts_have_the_wishes_of_their_item() -> None:
    seen: list[tuple[str, int, Any]] = []

    async def handler(items: list[str]) -> list[str]:
        requests = shoal.current_batch().requests
        seen.extend((r.item, r.priority, dict(r.metadata)) for r in requests)
        return items

    async with shoal.Batcher(handler, **SPLIT, priority_levels=3) as call:
        assert await call.options(priority=1, metadata={"id": 7})("abcdef") == "abcdef"
    assert seen == [("abcd", 1, {"id": 7}), ("ef", 1, {"id": 7})]


async def test_streams_are_not_divided() -> None:
    async def steps(items: list[str]) -> AsyncIterator[list[str]]:
        yield items

    with pytest.raises(ValueError, match="split is for calls with one result"):
        shoal.Batcher(steps, **SPLIT)


async def test_a_map_is_joined_by_the_options_that_divided_it(held: Held) -> None:
    async with plugged(held, **SPLIT) as (batcher, call, tasks):
        (caller,) = await line_up(tasks, call.map(["abcdef", "gh"]))
        batcher.configure(split=None, join=None)
    assert caller.outcome == ["abcdef", "gh"]
