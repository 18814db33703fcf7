"""How batches are formed where requests are not all alike: gaps, costs, keys, sizes, own rules."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, launch, line_up, outcomes, outcomes_in_order, read_all
from batching.scenes import Held, Recorder, opening, plugged, settle
from shoal import BatchOptions, DispatchReason, Request
from shoal.core.policy import Pressure, Wait, WholeQueuePolicy


def by_tens(item: int) -> int:
    return item // 10


def itself(item: Any) -> Any:
    return item


BY_COST: dict[str, Any] = {"batch_wait_timeout_s": 1, "batch_size_fn": itself}
PADDED: dict[str, Any] = {"batch_wait_timeout_s": 1, "allowed_batch_sizes": (2, 4)}


# idle_timeout_s


async def test_the_wait_ends_when_nobody_came_for_the_idle_time(recorder: Recorder) -> None:
    async with opening(recorder, max_batch_size=9, idle_timeout_s=2) as (batcher, call, tasks):
        for item in range(3):
            await line_up(tasks, call(item))
            await anyio.sleep(1.5)
    assert (recorder.batches, recorder.starts) == ([[0, 1, 2]], [5])
    assert recorder.reasons == [DispatchReason.IDLE]
    assert batcher.statistics().batches[DispatchReason.IDLE] == 1


async def test_of_the_idle_time_and_the_window_the_first_ends_the_wait(recorder: Recorder) -> None:
    async with opening(recorder, idle_timeout_s=2, batch_wait_timeout_s=4) as (_, call, tasks):
        for item in range(4):
            await line_up(tasks, call(item))
            await anyio.sleep(1.5)
    assert (recorder.batches, recorder.starts) == ([[0, 1, 2], [3]], [4, 6.5])
    assert recorder.reasons == [DispatchReason.TIMER, DispatchReason.IDLE]


async def test_an_idle_time_that_has_passed_behind_a_busy_slot_is_not_waited_for_again(held):
    async with opening(held, max_batch_size=9, idle_timeout_s=2) as (_, call, tasks):
        await line_up(tasks, call(0))
        await anyio.sleep(2)
        await line_up(tasks, call(1))
        await anyio.sleep(5)
        freed = anyio.current_time()
        held.gate.set()
    assert held.batches == [[0], [1]]
    assert held.started_at[1] == freed


async def test_each_bucket_has_its_own_idle_time(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, max_batch_size=9, idle_timeout_s=2, bucket_by=by_tens)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(1))
        await anyio.sleep(1)
        await line_up(tasks, call(11))
        await anyio.sleep(0.5)
        await line_up(tasks, call(2))
    assert (recorder.batches, recorder.starts) == ([[11], [1, 2]], [3, 3.5])


# batch_size_fn


async def test_what_does_not_fit_stays_first_and_nothing_overtakes_it(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, max_batch_size=10, **BY_COST) as call:
        assert await outcomes_in_order(*map(call, [6, 5, 4, 3, 7, 1])) == [6, 5, 4, 3, 7, 1]
    assert recorder.batches == [[6], [5, 4], [3, 7], [1]]


async def test_tx1_a_batch_is_full_at_its_number_of_requests_or_at_its_cost(
    recorder: Recorder,
) -> None:
    async with shoal.Batcher(recorder, max_batch_size=3, max_batch_cost=10, **BY_COST) as call:
        await outcomes_in_order(*map(call, [1, 1, 1, 8, 2, 1, 9, 2]))
        with pytest.raises(shoal.errors.ItemTooLarge, match=r"max_batch_cost=10"):
            await call(11)
    assert recorder.batches == [[1, 1, 1], [8, 2], [1, 9], [2]]
    assert recorder.reasons == [DispatchReason.FULL] * 3 + [DispatchReason.TIMER]


async def test_costs_may_be_fractions_or_nothing(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, max_batch_size=1, **BY_COST) as call:
        await outcomes_in_order(*map(call, [0, 0.5, 0, 0.25, 0.25]))
        await outcomes_in_order(*map(call, [0.75, 0, 0.5]))
        await outcomes_in_order(*map(call, [0, 0]))
    assert recorder.batches == [[0, 0.5, 0, 0.25, 0.25], [0.75, 0], [0.5], [0, 0]]
    assert recorder.reasons == [
        *(DispatchReason.FULL, DispatchReason.FULL),
        *(DispatchReason.TIMER, DispatchReason.TIMER),
    ]


async def test_the_item_of_several_parameters_is_the_tuple_of_them_in_their_order() -> None:
    seen: list[Any] = []

    def cost(item: tuple[str, int, bool]) -> int:
        seen.append(item)
        return item[1]

    async def handler(text: list[str], size: list[int], fast: Any = True) -> list[str]:
        return text

    async with shoal.Batcher(handler, max_batch_size=4, batch_size_fn=cost) as call:
        assert await call(size=3, text="a") == "a"
        assert await call("b", 4, fast=False) == "b"
        with pytest.raises(shoal.errors.ItemTooLarge):
            await call("c", 5)
    assert seen == [("a", 3, True), ("b", 4, False), ("c", 5, True)]


@pytest.mark.parametrize(
    ("option", "broken", "error"),
    [
        ("batch_size_fn", lambda: 1 / 0, ZeroDivisionError),
        ("batch_size_fn", lambda: float("nan"), ValueError),
        ("batch_size_fn", lambda: "many", TypeError),
        ("batch_size_fn", lambda: 11, shoal.errors.ItemTooLarge),
        ("bucket_by", lambda: 1 / 0, ZeroDivisionError),
        ("bucket_by", lambda: [1], TypeError),
    ],
)
async def test_a_broken_function_of_an_item_fails_its_caller_alone(option, broken, error, recorder):
    options: Any = {option: lambda item: broken() if item == "bad" else 1}
    batcher = shoal.Batcher(recorder, max_batch_size=10, batch_wait_timeout_s=1, **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        (before,) = await line_up(tasks, call("good"))
        with pytest.raises(error):
            await call("bad")
        with pytest.raises(error):
            await call.map(["good", "bad"])  # then no call is made
        (after,) = await line_up(tasks, call("good"))
    assert (before.outcome, after.outcome) == ("good", "good")
    assert recorder.batches == [["good", "good"]]
    statistics = batcher.statistics()
    assert (statistics.finished, statistics.failed, statistics.rejected) == (2, 0, 0)


# bucket_by


async def test_tx10_only_requests_with_equal_keys_share_a_batch(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, max_batch_size=2, batch_wait_timeout_s=1, bucket_by=by_tens)
    async with batcher as call:
        assert await outcomes_in_order(*map(call, [1, 11, 2, 21, 12])) == [1, 11, 2, 21, 12]
    assert sorted(recorder.batches) == [[1, 2], [11, 12], [21]]


async def test_of_the_buckets_that_are_due_the_one_with_the_oldest_request_goes_first(held):
    async with plugged(held, 0, max_batch_size=3, bucket_by=by_tens) as (_, call, tasks):
        callers = await line_up(tasks, *map(call, [31, 11, 32, 21, 12, 33, 34]))
        callers[0].leave()  # then 11 is the oldest
    assert held.batches == [[0], [11, 12], [32, 33, 34], [21]]


async def test_a_full_bucket_does_not_wait_for_an_older_one_that_may_still_wait(recorder):
    batcher = shoal.Batcher(recorder, max_batch_size=2, batch_wait_timeout_s=5, bucket_by=by_tens)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(1))
        await anyio.sleep(1)
        await line_up(tasks, call(11), call(12))
    assert (recorder.batches, recorder.starts) == ([[11, 12], [1]], [1, 5])
    assert recorder.reasons == [DispatchReason.FULL, DispatchReason.TIMER]


# allowed_batch_sizes, padding and pad


async def test_a_batch_is_padded_with_its_last_item_and_what_comes_of_that_is_dropped() -> None:
    sizes: list[tuple[int, float]] = []

    async def handler(items: list[str]) -> list[str]:
        batch = shoal.current_batch()
        sizes.append((batch.size, batch.load))
        return [f"{item}{place}of{len(items)}" for place, item in enumerate(items)]

    options = {**PADDED, "max_batch_size": 8, "allowed_batch_sizes": (2, 4, 8)}
    batcher = shoal.Batcher(handler, **options)
    async with batcher as call:
        assert await outcomes_in_order(*map(call, "abc")) == ["a0of4", "b1of4", "c2of4"]
        assert await call("a") == "a0of2"
        assert len(await outcomes_in_order(*map(call, "abcdefgh"))) == 8
    assert sizes == [(3, 4), (1, 2), (8, 8)]
    assert batcher.statistics().finished == 12


async def test_pad_is_told_the_items_and_the_size(recorder: Recorder) -> None:
    asked: list[tuple[list[int], int]] = []

    def pad(items: list[int], size: int) -> list[int]:
        asked.append((list(items), size))
        return items + [0] * (size - len(items))

    async with shoal.Batcher(recorder, max_batch_size=4, **PADDED, pad=pad) as call:
        assert await outcomes_in_order(*map(call, [7, 8, 9])) == [7, 8, 9]
        assert await outcomes_in_order(*map(call, [1, 2])) == [1, 2]
    assert recorder.batches == [[7, 8, 9, 0], [1, 2]]
    assert asked == [([7, 8, 9], 4)]


async def test_streams_are_padded_too() -> None:
    async def handler(items: list[str]) -> AsyncIterator[list[Any]]:
        assert items == ["a", "b", "c", "c"]
        yield [f"{item}{place}" for place, item in enumerate(items)]
        yield [shoal.END, "more", ValueError("only of c"), "of nobody"]

    options = {"max_batch_size": 4, "batch_wait_timeout_s": 1, "allowed_batch_sizes": (4,)}
    async with opening(handler, **options) as (_, call, tasks):
        readers = await read_all(tasks, *map(call, "abc"))
    assert [reader.items for reader in readers] == [["a0"], ["b1", "more"], ["c2"]]
    assert [str(reader.outcome) for reader in readers] == ["end", "end", "only of c"]


async def test_padding_down_leaves_the_rest_first_in_the_queue(recorder: Recorder) -> None:
    options: Any = {"allowed_batch_sizes": (1, 2, 4, 8), "padding": "down"}
    batcher = shoal.Batcher(recorder, max_batch_size=8, batch_wait_timeout_s=3, **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        for item in range(3):
            await line_up(tasks, call(item))
            await anyio.sleep(1)
    # The last of them came at 2 s, and its own window ends 3 s after that.
    assert (recorder.batches, recorder.starts) == ([[0, 1], [2]], [3, 5])


async def test_what_is_below_the_smallest_allowed_size_is_padded_up_even_by_down(recorder):
    batcher = shoal.Batcher(recorder, max_batch_size=4, allowed_batch_sizes=(4,), padding="down")
    async with batcher as call:
        assert await call(1) == 1
    assert recorder.batches == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("run_s", "expected"),
    [
        pytest.param(lambda size: 1.0, [4], id="all sizes take as long"),
        pytest.param(lambda size: size * 1.0, [2, 2], id="each item takes as long"),
        pytest.param(lambda size: 2 + size / 2, [4], id="most of it does not depend on the size"),
    ],
)
async def test_padding_by_cost_takes_the_size_that_takes_less_time_a_request(run_s, expected):
    async def handler(items: list[int]) -> list[int]:
        sizes.append(len(items))
        await anyio.sleep(run_s(len(items)))
        return items

    batcher = shoal.Batcher(handler, max_batch_size=4, allowed_batch_sizes=(2, 4), padding="cost")
    sizes: list[int] = []
    async with batcher as call:
        for _ in range(3):  # until both sizes were tried
            sizes.clear()
            assert await call.map(range(3)) == [0, 1, 2]
    assert sizes == expected


@pytest.mark.parametrize(
    "pad",
    [
        pytest.param(lambda items, size: 1 / 0, id="raises"),
        pytest.param(lambda items, size: items, id="too few"),
        pytest.param(lambda items, size: items * size, id="too many"),
        pytest.param(lambda items, size: None, id="None"),
    ],
)
async def test_a_broken_pad_fails_its_batch_and_the_batcher_goes_on(pad, recorder):
    batcher = shoal.Batcher(recorder, max_batch_size=4, **PADDED, pad=pad)
    async with batcher as call:
        errors = await outcomes(*map(call, range(3)))
        assert all(isinstance(error, Exception) for error in errors)
        assert len(set(map(id, errors))) == 3
        assert recorder.batches == []
        assert await call.map(range(4)) == [0, 1, 2, 3]
        assert batcher.is_alive


async def test_costs_are_padded_to_an_allowed_sum(recorder: Recorder) -> None:
    def pad(items: list[int], size: int) -> list[int]:
        return [*items, size - sum(items)]

    options = {**BY_COST, "max_batch_size": 16, "allowed_batch_sizes": (8, 16)}
    async with shoal.Batcher(recorder, **options, pad=pad) as call:
        assert await outcomes_in_order(call(3), call(2)) == [3, 2]
        assert await outcomes_in_order(call(6), call(7)) == [6, 7]
    assert recorder.batches == [[3, 2, 3], [6, 7, 3]]


async def test_the_halves_of_a_failed_batch_are_padded_anew() -> None:
    handler = Recorder(lambda item: item)

    async def picky(items: list[int]) -> list[int]:
        handler.note(items)
        if 3 in items:
            raise ValueError("3")
        return items

    async with shoal.Batcher(picky, max_batch_size=4, **PADDED, isolate_errors=True) as call:
        results = await outcomes_in_order(call(1), call(2), call(3))
    assert results[:2] == [1, 2]
    assert isinstance(results[2], ValueError)
    assert {len(batch) for batch in handler.batches} <= {2, 4}
    assert handler.batches[0] == [1, 2, 3, 3]


# preferred_batch_sizes


@pytest.mark.parametrize("how", ["flush", "drain", "close"])
@pytest.mark.parametrize(
    ("options", "items", "batches"),
    [
        ({"bucket_by": by_tens, "max_batch_size": 3}, [1, 11, 2, 21], [[1, 2], [11], [21]]),
        ({"preferred_batch_sizes": (4, 6)}, [0, 1, 2], [[0, 1, 2]]),
    ],
    ids=["buckets", "preferred sizes"],
)
async def test_what_waits_is_sent_when_batches_need_not_fill(how, options, items, batches):
    handler = Recorder()
    batcher = shoal.Batcher(handler, batch_wait_timeout_s=None, **options)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await launch(tasks, *map(call, items))
        assert handler.batches == []
        if how != "close":
            getattr(batcher, how)()
            await settle()
            assert [caller.outcome for caller in callers] == items
    assert handler.batches == batches


# policy


class Newest(WholeQueuePolicy):
    """The newest goes first, each alone."""

    def __init__(self, options: BatchOptions) -> None:
        super().__init__()
        self.size = options.max_batch_size

    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        chosen = (
            [pressure.request] if pressure is not None and pressure.request else queue[-self.size :]
        )
        return chosen[::-1], DispatchReason.FULL if pressure is None else pressure.reason


async def test_a_rule_of_ones_own_forms_the_batches(held: Held) -> None:
    async with plugged(held, 0, max_batch_size=2, policy=Newest) as (_, call, tasks):
        callers = await line_up(tasks, *map(call, range(1, 6)))
        callers[3].leave()
    assert held.batches == [[0], [5, 3], [2, 1]]
    assert [caller.outcome for caller in callers] == [1, 2, 3, LEFT, 5]


async def test_a_policy_that_is_none_is_refused_when_the_batcher_is_made() -> None:
    def no_policy(options: BatchOptions) -> Any:
        return options.max_batch_size

    with pytest.raises(TypeError, match="must make a BatchPolicy from the options, not 10"):
        shoal.Batcher(Recorder(), policy=no_policy)
