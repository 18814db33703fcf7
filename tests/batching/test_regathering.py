"""Callers in closed loops stay in one batch; see ``tests/core/test_returns.py`` for the rule."""

from typing import Any

import anyio
import pytest

import shoal
from closed_loops import RUN_S, STEPS, THINK_S, Sizes, think
from shoal.core.request import DispatchReason

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
