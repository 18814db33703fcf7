"""Handlers that do anything, op by op: every caller is told, and a neighbour stays right."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from base_exceptions import Panic
from batching.scenes import outcome, settle
from shoal.testing import run_virtually

RAISES: dict[str, Any] = {
    "panic": Panic,
    "cancelled": asyncio.CancelledError,
    "closed": GeneratorExit,
    "group": lambda: BaseExceptionGroup("two", [Panic(), ValueError()]),
    "error": ValueError,
}
CHANGES: dict[str, Any] = {
    "clear": list.clear,
    "more": lambda items: items.append("more"),
    "first": lambda items: items.insert(0, "first"),
}
OPS = st.lists(st.sampled_from([*RAISES, *CHANGES, "sleep", "step", "shield"]), max_size=5)


async def does(op: str, items: list[Any]) -> None:
    if op in RAISES:
        raise RAISES[op]()
    if op in CHANGES:
        CHANGES[op](items)
    elif op == "sleep":
        await anyio.sleep(1)
    elif op == "shield":
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3)


async def unary(items: list[Any]) -> list[Any]:
    given = list(items)
    for op in given[0][0]:
        await does(op, items)
    return given


async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
    given = list(items)
    try:
        with anyio.move_on_after(100):
            for op in given[0][0]:
                await does(op, items)
                if op == "step":
                    yield given
        yield given
    finally:
        for op in given[0][1]:
            await does(op, items)


async def neighbour(items: list[Any]) -> list[Any]:
    await anyio.sleep(1)
    return items


async def last(batcher: shoal.Batcher[Any], item: Any, leaves: bool) -> Any:
    if not batcher.streams:
        return await batcher.call(item)
    async with batcher.call(item) as stream:
        got: list[Any] = [item]
        async for step in stream:
            got.append(step)
            if leaves:
                break
        return got[-1]


async def plays(handler: Any, programs: list[tuple[list[str], list[str], bool]]) -> None:
    batcher: Any = shoal.Batcher(handler, max_batch_size=1, handler_timeout_s=5)
    async with batcher, shoal.Batcher(neighbour, max_batch_size=1) as beside:
        for program, at_the_end, leaves in programs:
            item = (program, at_the_end)
            got = await outcome(last(batcher, item, leaves))
            assert got == item or isinstance(got, Exception), got
            is_broken = any(op in RAISES for op in program)
            is_in_time = program.count("sleep") + 3 * program.count("shield") < 5
            if not batcher.streams and not is_broken and is_in_time:
                assert got == item
            await settle()
            assert batcher.is_alive
            assert await beside(7) == 7
    statistics = batcher.statistics()
    assert (statistics.state, statistics.batches_running) == ("closed", 0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("handler", [unary, steps])
@settings(max_examples=25)
@given(programs=st.lists(st.tuples(OPS, OPS, st.booleans()), min_size=1, max_size=4))
def test_a_batcher_outlives_whatever_its_handler_does(backend, handler, programs):
    run_virtually(plays, handler, programs, backend=backend)
