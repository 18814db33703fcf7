"""A handler that holds up the event loop is named in the log."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import outcome, read_all, using
from conformance.replica_scenes import served
from shoal.batching.handlers import handler


class Clock(threading.local):
    """The clock by which holds are measured; only code that blocks a thread moves it there."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def block(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(handler, "perf_counter", clock)
    return clock


def held(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "held the event loop" in line]


@pytest.mark.parametrize("form", ["unary", "steps", "open", "error"])
async def test_a_handler_that_blocks_is_named_with_its_time(form, clock, caplog):
    async def unary(items: list[int]) -> list[int]:
        await anyio.sleep(60)
        clock.block(2.3)
        return items

    async def steps(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        clock.block(2.3)
        yield items

    async def by_request(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            clock.block(2.3)
            request.finish(request.item)

    async def fails(items: list[int]) -> list[int]:
        clock.block(2.3)
        raise ValueError

    handler: Any = {"unary": unary, "steps": steps, "open": by_request, "error": fails}[form]
    fill: Any = "open" if form == "open" else "closed"
    async with using(shoal.Batcher(handler, name="embed", fill=fill)) as (call, tasks):
        if form == "steps":
            await read_all(tasks, call(1))
        else:
            await outcome(call(1))
    (line,) = held(caplog)
    assert line == (
        "the handler embed held the event loop for 2.3 s; declare it with def, or await the slow "
        "part: await anyio.to_thread.run_sync(function)"
    )


async def test_it_is_named_at_most_once_a_minute(clock, caplog):
    async def blocks(items: list[float]) -> list[float]:
        clock.block(sum(items))
        return items

    async with shoal.Batcher(blocks) as call, shoal.Batcher(blocks, name="other") as call_other:
        for seconds in (2, 3, 4, 0.5):
            await call(seconds)
        assert len(held(caplog)) == 1
        await call_other(5)
        assert len(held(caplog)) == 2
        clock.block(60)
        await call(1.5)
    assert ["2.0 s" in held(caplog)[0], "1.5 s" in held(caplog)[2]] == [True, True]


async def test_a_handler_that_waits_or_takes_little_is_not_named(clock, caplog):
    async def waits(items: list[int]) -> list[int]:
        for _ in range(9):
            clock.block(0.9)
            await anyio.sleep(100)
        return items

    async with shoal.Batcher(waits) as call:
        await call(1)
    assert held(caplog) == []


@pytest.mark.real_time
async def test_a_plain_handler_holds_up_nothing(clock, caplog):
    def blocks(items: list[int]) -> list[int]:
        clock.block(3)
        return items

    async with shoal.Batcher(blocks) as call:
        await call(1)
    assert held(caplog) == []


@pytest.mark.real_time
async def test_served_code_and_its_hooks_are_named(clock, caplog):
    class Model:
        async def warm_up(self) -> None:
            clock.block(20)

        async def __call__(self, item: int) -> int:
            clock.block(2)
            return item

    async with served(Model) as handle:
        assert await handle.call(1) == 1
    warm_up, call = held(caplog)
    assert warm_up.startswith("warm_up() of only#0 held the event loop for 20.0 s")
    assert call.startswith("the handler only held the event loop for 2.0 s")
