"""The option ``open``, and the errors of code that needs another event loop or thread."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import shoal
from batching.scenes import outcome, settle
from shoal.serving.controller.controller import Controller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pool: ContextVar[str] = ContextVar("pool")


class Life:
    """Notes when the context manager and the handler run."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        await anyio.sleep(0.01)
        pool.set("a pool")
        self.notes.append("opened")
        yield
        await anyio.sleep(0.01)
        self.notes.append("closed")

    async def handler(self, items: list[int]) -> list[str]:
        await anyio.sleep(0.01)
        self.notes.append(items)
        return [pool.get()] * len(items)


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["function", "manager"])
async def test_it_is_entered_before_the_first_batch_and_left_after_the_last(form: str) -> None:
    life = Life()
    opens: Any = life.opened if form == "function" else life.opened()
    async with (
        anyio.create_task_group() as tasks,
        shoal.Batcher(life.handler, open=opens) as call,
    ):
        assert await call(1) == "a pool"
        tasks.start_soon(call, 2)
        await settle()
    assert life.notes == ["opened", [1], [2], "closed"]


@pytest.mark.anyio
async def test_a_function_that_is_opened_at_its_first_call_enters_it_in_each_block() -> None:
    life = Life()
    fetch = shoal.batch(open=life.opened)(life.handler)
    for _ in range(2):
        async with shoal.open_batchers():
            assert await fetch(1) == "a pool"
    assert life.notes == ["opened", [1], "closed"] * 2


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_blocking_enters_it_in_its_event_loop(backend: str) -> None:
    life = Life()
    with shoal.blocking(shoal.Batcher(life.handler, open=life.opened), backend=backend) as call:
        assert call(1) == "a pool"
    assert life.notes == ["opened", [1], "closed"]


@pytest.mark.anyio
async def test_a_batcher_whose_manager_raises_does_not_open() -> None:
    @asynccontextmanager
    async def fails() -> AsyncIterator[None]:
        raise ConnectionRefusedError("no database")
        yield

    life = Life()
    batcher = shoal.Batcher(life.handler, open=fails)
    error = await outcome(batcher.__aenter__())
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert repr(error) == "ConnectionRefusedError('no database')"
    assert isinstance(batcher.failure, ConnectionRefusedError)


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="open=pool, an @asynccontextmanager function"):
        shoal.Batcher(Life().handler, open=5)  # type: ignore[call-overload]


@pytest.mark.real_time
def test_a_handler_for_asyncio_is_told_to_use_asyncio() -> None:
    async def handler(items: list[int]) -> list[int]:
        await asyncio.sleep(0.001)
        return items

    with (
        shoal.blocking(shoal.Batcher(handler)) as call,
        pytest.raises(RuntimeError, match=r'no running event loop.*backend="asyncio"'),
    ):
        call(1)
    with shoal.blocking(shoal.Batcher(handler), backend="asyncio") as call:
        assert call(1) == 1


class NeedsLoop:
    def __init__(self) -> None:
        asyncio.get_running_loop()

    async def __call__(self, item: int) -> int:
        return item


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_handler_with_a_connection_of_another_thread_is_told_of_warm_up() -> None:
    connection = await anyio.to_thread.run_sync(lambda: sqlite3.connect(":memory:"))

    async def handler(items: list[int]) -> list[Any]:
        return [connection.execute("select 1").fetchone() for _ in items]

    async with shoal.Batcher(handler) as call:
        error = await outcome(call(1))
    assert type(error) is sqlite3.ProgrammingError
    assert "make it in `async def warm_up(self)`" in str(error)


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize("placement", ["task", "process"])
async def test_a_constructor_that_needs_an_event_loop_is_told_of_warm_up(placement: str) -> None:
    async with Controller() as controller:
        config = {"placement": placement}
        error = await outcome(controller.create_backend("code", NeedsLoop, config=config))
    assert type(error) is shoal.ReplicaNotStarted
    assert "make what needs the loop in `async def warm_up(self)`" in str(error)
