"""`drop_queued_on_shutdown`: what is queued fails as closing begins, what runs is answered."""

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import shoal
from batching.scenes import Caller, Held, Steps, launch, line_up, read_all, settle

DROP: dict[str, Any] = {"drop_queued_on_shutdown": True}


async def slowly(items: list[Any]) -> list[Any]:
    await anyio.sleep(5)
    return items


def check(callers: list[Caller], began: float) -> None:
    """Checks that the first was answered, and that all others failed as closing began."""
    first, *others = callers
    assert first.outcome == 0
    assert first.ended_at == pytest.approx(5)
    for caller in others:
        assert type(caller.outcome) is shoal.errors.BatcherClosed
        assert caller.ended_at == pytest.approx(began)


async def test_who_closes_may_say_otherwise() -> None:
    batcher = shoal.Batcher(slowly, max_batch_size=1, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await launch(tasks, *map(call, range(3)))
        await batcher.aclose(drop_queued=False)
    assert [caller.outcome for caller in callers] == [0, 1, 2]


@pytest.mark.parametrize("later_s", [0, 1])
async def test_a_second_close_may_drop_what_the_first_let_wait(later_s: float) -> None:
    batcher = shoal.Batcher(slowly, max_batch_size=1)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await launch(tasks, *map(call, range(3)))
        tasks.start_soon(partial(batcher.aclose, drop_queued=False))
        if later_s:
            await anyio.sleep(later_s)
        else:
            await anyio.lowlevel.checkpoint()
        await batcher.aclose(drop_queued=True)
    check(callers, later_s)


async def test_it_may_be_set_while_the_batcher_is_open() -> None:
    batched = shoal.batch(max_batch_size=1)(slowly)
    async with anyio.create_task_group() as tasks, shoal.open_batchers(batched):
        callers = await line_up(tasks, *map(batched, range(3)))
        await anyio.sleep(1)
        batched.configure(**DROP)
    check(callers, 1)


async def test_who_gathers_waits_in_the_queue_and_is_dropped_too() -> None:
    batched = shoal.batch(batch_wait_timeout_s=None, **DROP)(slowly)
    async with anyio.create_task_group() as tasks, shoal.open_batchers(batched):
        callers = await launch(tasks, batched(1), batched(2))
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 2
    assert [caller.ended_at for caller in callers] == [pytest.approx(0)] * 2


async def test_who_is_parked_is_dropped_and_takes_no_place_of_the_dropped() -> None:
    batcher = shoal.Batcher(
        slowly, max_batch_size=1, max_queued_requests=1, overload="wait", **DROP
    )
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, *map(call, range(5)))
        await anyio.sleep(1)
        assert batcher.statistics().parked == 3
    check(callers, 1)
    assert await batcher.aclose() == shoal.statistics.ClosingCounts(1, 4, 0)


async def test_a_map_that_is_divided_fails_in_the_part_that_waits() -> None:
    batched = shoal.batch(max_batch_size=2, **DROP)(slowly)
    async with anyio.create_task_group() as tasks, shoal.open_batchers(batched):
        (caller,) = await launch(tasks, batched.map(range(5), return_exceptions=True))
    assert caller.outcome[:2] == [0, 1]
    assert [type(error) for error in caller.outcome[2:]] == [shoal.errors.BatcherClosed] * 3


async def test_streams_that_run_go_on_to_their_end() -> None:
    with Steps() as steps:
        batcher = shoal.Batcher(steps.handler, max_batch_size=1, **DROP)
        async with anyio.create_task_group() as tasks, batcher as call:
            readers = await read_all(tasks, call("running"), call("queued"))
            steps.step(1)
            await settle()
            tasks.start_soon(batcher.aclose)
            await settle()
            assert type(readers[1].outcome) is shoal.errors.BatcherClosed
            steps.step(2)
            steps.end()
    assert readers[0].items == [1, 2]
    assert readers[0].outcome == "end"


async def test_a_continuous_batch_answers_who_is_in_it() -> None:
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for requests in batch.steps():
            await anyio.sleep(5)
            for request in requests:
                request.finish(request.item)

    batcher = shoal.Batcher(handler, fill="continuous", max_batch_size=1, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, *map(call, range(3)))
        await anyio.sleep(1)
    check(callers, 1)


async def test_in_a_block_running_handlers_may_go_on_to_call_the_batcher() -> None:
    inner = shoal.batch(max_batch_size=1, **DROP)(slowly)

    @shoal.batch(max_batch_size=1)
    async def outer(items: list[int]) -> list[int]:
        await anyio.sleep(2)
        return await inner.map(items)

    async with anyio.create_task_group() as tasks, shoal.open_batchers():
        callers = await line_up(tasks, outer(7), inner(0), inner(1), inner(2))
        await anyio.sleep(1)
    assert callers[0].outcome == 7
    check(callers[1:], 1)


@pytest.mark.parametrize("open_again", [True, False])
async def test_a_drain_drops_what_is_in_the_queue_and_takes_calls(open_again: bool) -> None:
    batcher = shoal.Batcher(slowly, max_batch_size=1, drop_queued_on_shutdown=not open_again)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, *map(call, range(2)))
        await anyio.sleep(1)
        batcher.drain()
        late = await line_up(tasks, call(9))
        await anyio.sleep(14)
    if not open_again:
        check(callers, 1)
    assert late[0].outcome == 9


async def test_the_budget_still_bounds_what_runs() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=1, graceful_shutdown_timeout_s=3, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await launch(tasks, *map(call, range(2)))
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 2
    assert [caller.ended_at for caller in callers] == [pytest.approx(3), pytest.approx(0)]
    assert held.cancelled == [[0]]
