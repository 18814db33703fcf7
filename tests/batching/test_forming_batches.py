"""Forming, through the batcher: full or waited long enough, and only for a slot that is free.

Callers in closed loops stay in one batch; see ``tests/core/test_returns.py`` for the rule.
"""

import time
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import launch, line_up, outcomes
from batching.scenes import Held, Recorder, Refusing, opening, settle, slots_of
from closed_loops import RUN_S, STEPS, THINK_S, Sizes, think
from shoal.batching.running.closed_slots import HELD_MOST_S, IN_A_ROW_MOST
from shoal.batching.running.slots import IDLE_SLOTS_KEPT
from shoal.core.request import DispatchReason


@pytest.mark.parametrize("size", [1, 3])
async def test_ru6_ru9_a_full_batch_leaves_at_once(size: int, recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, max_batch_size=size, batch_wait_timeout_s=100) as call:
        assert await call.map(range(6)) == list(range(6))
        assert anyio.current_time() == 0
    assert recorder.batches == [list(range(first, first + size)) for first in range(0, 6, size)]


async def test_the_wait_is_counted_from_the_arrival_of_the_oldest(recorder: Recorder) -> None:
    async with opening(recorder, batch_wait_timeout_s=10) as (_, call, tasks):
        for item in range(3):
            await line_up(tasks, call(item))
            await anyio.sleep(4)
        assert recorder.batches == [[0, 1, 2]]
    assert recorder.started_at[0] == pytest.approx(10)


async def test_when_the_oldest_leaves_the_wait_is_that_of_the_next(recorder: Recorder) -> None:
    async with opening(recorder, batch_wait_timeout_s=10) as (_, call, tasks):
        (oldest,) = await line_up(tasks, call(0))
        await anyio.sleep(4)
        arrived = anyio.current_time()
        await line_up(tasks, call(1))
        oldest.leave()
    assert recorder.batches == [[1]]
    assert recorder.started_at[0] - arrived == pytest.approx(10)


async def test_tr27_a_batch_is_formed_only_for_a_free_slot_so_requests_pile_up(held):
    async with opening(held, batch_wait_timeout_s=1, max_batch_size=100) as (_, call, tasks):
        await line_up(tasks, call(0))
        await anyio.sleep(2)
        for item in range(1, 6):
            await line_up(tasks, call(item))
            await anyio.sleep(3)
        assert held.batches == [[0]]
        held.gate.set()
    assert held.batches == [[0], [1, 2, 3, 4, 5]]


@pytest.mark.parametrize("busy_s", [3, 10, 12])
async def test_the_time_behind_a_busy_slot_counts_for_the_wait(busy_s: float, held: Held) -> None:
    async with opening(held, batch_wait_timeout_s=10) as (_, call, tasks):
        await line_up(tasks, call(0))
        await anyio.sleep(10)
        arrived = anyio.current_time()
        await line_up(tasks, call(1))
        await anyio.sleep(busy_s)
        held.gate.set()
    assert held.started_at[1] - arrived == pytest.approx(max(busy_s, 10))


async def test_a_wait_of_none_waits_until_the_batch_is_full(recorder: Recorder) -> None:
    async with opening(recorder, batch_wait_timeout_s=None, max_batch_size=3) as (_, call, tasks):
        await line_up(tasks, call(0), call(1))
        await anyio.sleep(80_000)
        assert recorder.batches == []
        await launch(tasks, call(2))
        assert recorder.batches == [[0, 1, 2]]


async def test_the_order_of_arrival_holds(held: Held) -> None:
    async with opening(held, max_batch_size=3, batch_wait_timeout_s=1) as (_, call, tasks):
        callers = await line_up(tasks, *map(call, range(10)))
        await callers[4].gone()
        held.gate.set()
    assert held.batches == [[0, 1, 2], [3, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_so_many_batches_run_at_once(slots: int, held: Held) -> None:
    batcher = shoal.Batcher(held, max_concurrent_batches=slots, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, *map(call, range(5)))
        assert held.batches == [[item] for item in range(slots)]
        assert batcher.statistics().batches_running == slots
        held.gate.set()
    assert held.batches == [[item] for item in range(5)]


async def test_a_flush_sends_what_is_in_the_queue_now(recorder: Recorder) -> None:
    async with opening(recorder, batch_wait_timeout_s=None) as (batcher, call, tasks):
        await line_up(tasks, call(0), call(1))
        batcher.flush()
        await settle()
        assert recorder.batches == [[0, 1]]
        await line_up(tasks, call(2))
        await anyio.sleep(1000)
        assert recorder.batches == [[0, 1]]
        batcher.flush()
    assert recorder.batches == [[0, 1], [2]]


async def test_a_flush_of_nothing_is_not_kept_for_later(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=10)
    async with batcher as call:
        batcher.flush()
        await settle()
        await call(0)
    assert recorder.started_at[0] == pytest.approx(10)


async def test_a_flush_whose_requests_all_left_does_not_send_a_later_one(held: Held) -> None:
    async with opening(held, batch_wait_timeout_s=None, max_batch_size=2) as (batcher, call, tasks):
        callers = await launch(tasks, *map(call, range(3)))
        batcher.flush()
        await callers[2].gone()
        await line_up(tasks, call(3))
        await held.release()
        assert held.batches == [[0, 1]]
        batcher.flush()


async def test_flush_and_drain_of_a_batcher_that_is_not_open_do_nothing() -> None:
    batcher = shoal.Batcher(Recorder())
    batcher.flush()
    batcher.drain()


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_full_batch_begins_before_the_callers_of_the_last_one_go_on(slots: int) -> None:
    """They would take the event loop's time while the handler is idle."""
    events: list[tuple[str, int]] = []

    async def handler(items: list[int]) -> list[int]:
        events.append(("begins", items[0]))
        await anyio.sleep(1)
        return items

    async def caller(call: Any, number: int) -> None:
        await call(number)
        events.append(("has a result", number))

    async with opening(handler, max_batch_size=2, max_concurrent_batches=slots) as (_, call, tasks):
        for number in range(2 * slots):
            tasks.start_soon(caller, call, number)
        await anyio.sleep(0.5)
        for number in range(10, 12):
            tasks.start_soon(caller, call, number)
    begins = [
        nth for nth, (what, number) in enumerate(events) if (what, number >= 10) == ("begins", True)
    ]
    results = [nth for nth, (what, _) in enumerate(events) if what == "has a result"]
    assert begins[0] < min(results)


async def batches_in_a_row(run_s: float) -> int:
    """Returns how many full batches begin at most before another task has a turn."""
    in_a_row = [0]

    async def handler(items: list[int]) -> list[int]:
        in_a_row[-1] += 1
        time.sleep(run_s)  # noqa: ASYNC251
        return items

    async def caller(call: Any, number: int) -> None:
        await call(number)
        in_a_row.append(0)

    async with opening(handler, max_batch_size=1) as (_, call, tasks):
        for number in range(40):
            tasks.start_soon(caller, call, number)
    assert sum(in_a_row) == 40
    return max(in_a_row)


async def test_a_few_full_batches_of_a_fast_handler_begin_in_a_row() -> None:
    assert await batches_in_a_row(0) == IN_A_ROW_MOST


@pytest.mark.real_time
async def test_other_tasks_have_a_turn_after_a_batch_that_held_the_loop() -> None:
    assert await batches_in_a_row(2 * HELD_MOST_S) == 1


# Slots are made when batches need them, so any number costs nothing, and so does no bound


MANY = 10_000


@pytest.mark.parametrize("bound", [1, MANY, None])
async def test_opening_makes_one_slot_whatever_the_bound(bound: int | None) -> None:
    batcher = shoal.Batcher(Recorder(), max_concurrent_batches=bound)
    async with batcher:
        await settle()
        assert slots_of(batcher) == 1


@pytest.mark.parametrize("bound", [MANY, None])
@pytest.mark.parametrize("wait_s", [0, None])
async def test_as_many_batches_run_at_once_as_there_are(bound, wait_s, held):
    options: Any = {"max_concurrent_batches": bound, "batch_wait_timeout_s": wait_s}
    async with opening(held, max_batch_size=1, **options) as (batcher, call, tasks):
        callers = await launch(tasks, *map(call, range(100)))
        assert batcher.statistics().batches_running == 100
        assert slots_of(batcher) == 101
        await held.release()
        assert [caller.outcome for caller in callers] == list(range(100))
        assert slots_of(batcher) <= IDLE_SLOTS_KEPT + 1
        await call(1)


async def test_a_batch_without_a_bound_on_their_number_still_waits_to_fill(recorder):
    options: Any = {"max_concurrent_batches": None, "batch_wait_timeout_s": 3}
    async with shoal.Batcher(recorder, max_batch_size=2, **options) as call:
        await outcomes(*map(call, range(3)))
        assert anyio.current_time() == 3
    assert sorted(map(len, recorder.batches)) == [1, 2]


async def test_without_a_bound_a_queue_of_no_length_admits_all(held: Held) -> None:
    options: Any = {"max_concurrent_batches": None, "max_queued_requests": 0}
    async with opening(held, max_batch_size=1, **options) as (_, call, tasks):
        callers = await line_up(tasks, *map(call, range(50)))
        await held.release()
        assert [caller.outcome for caller in callers] == list(range(50))


async def test_the_bound_on_batches_can_be_lifted_and_set_again_while_they_run(held: Held) -> None:
    async with opening(held, max_batch_size=1) as (batcher, call, tasks):
        await launch(tasks, *map(call, range(20)))
        assert batcher.statistics().batches_running == 1
        batcher.configure(max_concurrent_batches=None)
        await settle()
        assert batcher.statistics().batches_running == 20
        batcher.configure(max_concurrent_batches=2)
        await launch(tasks, *map(call, range(3)))
        assert batcher.statistics().batches_running == 20
        await held.release()
        held.gate = anyio.Event()
        await launch(tasks, *map(call, range(5)))
        assert batcher.statistics().batches_running == 2
        held.gate.set()


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_batches_that_take_requests_while_they_run_need_no_bound_either(fill: Any) -> None:
    gate = anyio.Event()

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        joined = await batch.join()
        await gate.wait()
        for request in joined:
            request.finish(request.item)
        batch.leave()

    batcher: Any = shoal.Batcher(handler, fill=fill, max_batch_size=1, max_concurrent_batches=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(20)))
        assert batcher.statistics().batches_running == 20
        gate.set()
        await settle()
        assert [caller.outcome for caller in callers] == list(range(20))


async def test_late_calls_are_refused_by_the_run_time_alone_where_there_is_no_bound() -> None:
    options: Any = {"max_batch_size": 1, "max_concurrent_batches": None, "refuse_late": True}
    async with opening(Refusing(run_s=2), **options) as (_, call, tasks):
        for _ in range(5):
            await call(0)
        busy = await line_up(tasks, *map(call, range(10)))
        with pytest.raises(shoal.errors.Overloaded):
            await call.options(timeout_s=1)(0)
        assert await call.options(timeout_s=3)(7) == 7
        await settle()
        assert [caller.outcome for caller in busy] == list(range(10))


async def test_adaptive_batches_need_no_bound_on_their_number() -> None:
    options: Any = {"max_batch_size": 8, "adaptive": shoal.LatencyTarget(p99_s=0.1)}
    batcher = shoal.Batcher(Refusing(run_s=0.01), **options, max_concurrent_batches=None)
    async with batcher as call:
        for _ in range(20):
            assert await call.map(range(30)) == list(range(30))
        assert 1 <= batcher.statistics().batch_size_limit <= 8  # and so it is a number


CALLERS = 16
ROUNDS = 40
MOST = 64


async def once(call: Any, number: int) -> None:
    assert await call(number) == number


async def read(call: Any, number: int) -> None:
    async with call(number) as stream:
        assert [item async for item in stream] == [number] * STEPS


async def in_loops(
    make_call: Any, call: Any, *, callers: int = CALLERS, rounds: int = ROUNDS
) -> None:
    """Has callers call again and again, each some time after its last result."""

    async def loop(number: int) -> None:
        for nth in range(rounds):
            await think(number, nth, callers)
            await make_call(call, number)

    async with anyio.create_task_group() as tasks:
        for number in range(callers):
            tasks.start_soon(loop, number)


KINDS = {"results": once, "steps": read}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"priority_levels": 2}], ids=["plain", "ranked"])
async def test_callers_in_closed_loops_are_gathered_again(kind, options):
    means = {}
    for regather in (True, False):
        handler = Sizes()
        batcher = shoal.Batcher(
            getattr(handler, kind), max_batch_size=MOST, regather=regather, **options
        )
        async with batcher as call:
            await in_loops(KINDS[kind], call)
        means[regather] = handler.mean()
        reasons = batcher.statistics().batches
        assert reasons[DispatchReason.REGATHER] == handler.reasons.count(DispatchReason.REGATHER)
        assert (reasons[DispatchReason.REGATHER] > len(handler.sizes) / 2) is regather
    assert means[True] >= 0.85 * CALLERS
    assert means[False] < 0.6 * CALLERS


@pytest.mark.parametrize("replicas", [1, 2])
async def test_callers_of_replicas_are_gathered_again(replicas):
    handler = Sizes()

    @shoal.accept_batch
    async def code(items: list[int]) -> list[int]:
        return await handler.results(items)

    async with shoal.start() as client:
        config = {"num_replicas": replicas, "placement": "task", "max_batch_size": 64}
        await client.create_backend("b", code, config=config)
        await client.create_endpoint("e", backend="b")
        handle = await client.get_handle("e")
        await in_loops(once, handle.call)
    assert handler.mean() >= 0.85 * CALLERS / replicas
    assert max(handler.sizes) <= CALLERS


async def test_a_time_limit_of_handlers_does_not_split_the_callers():
    handler = Sizes()
    limits = {"max_concurrent_batches": 2, "handler_timeout_s": 1.6 * RUN_S}
    async with shoal.Batcher(handler.results, max_batch_size=MOST, **limits) as call:
        await in_loops(once, call)
    assert handler.mean() >= 0.85 * CALLERS / 2


async def test_a_lone_caller_is_not_delayed():
    async with shoal.Batcher(Sizes().results, max_batch_size=64) as call:
        for _ in range(30):
            await anyio.sleep(THINK_S)
            started = anyio.current_time()
            await call(1)
            assert anyio.current_time() - started == pytest.approx(RUN_S + 0.0001)


async def test_a_group_that_stays_away_delays_nobody_for_long():
    handler = Sizes()
    async with shoal.Batcher(handler.results, max_batch_size=64) as call:
        await in_loops(once, call)
        took = []
        for _ in range(30):
            started = anyio.current_time()
            await call(1)
            took.append(anyio.current_time() - started)
            await anyio.sleep(RUN_S)
        assert max(took) < 2 * RUN_S
        assert took[-1] == pytest.approx(RUN_S + 0.0001)
