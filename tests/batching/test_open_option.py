"""The option ``open``, and the errors of code that needs another event loop or thread."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import shoal
from batching.callers import outcome
from batching.scenes import opening, settle
from shoal.batching.open_relay import OpenRelay

pool: ContextVar[str] = ContextVar("pool")


async def alone(opening: Awaitable[object]) -> object:
    """Returns the error of an opening, without the groups of its tasks."""
    error = await outcome(opening)
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


class Life:
    """Notes when the context manager and the handler run."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
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


async def test_it_is_entered_before_the_first_batch_and_left_after_the_last() -> None:
    life = Life()
    batcher = shoal.Batcher(life.handler, open=life.opened)
    async with anyio.create_task_group() as tasks, batcher as call:
        assert await call(1) == "a pool"
        tasks.start_soon(call, 2)
        await settle()
    assert life.notes == ["opened", [1], [2], "closed"]


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


@asynccontextmanager
async def fails() -> AsyncGenerator[None]:
    raise ConnectionRefusedError("no database")
    yield


@pytest.mark.parametrize(
    ("opens", "message"),
    [
        (fails, r"ConnectionRefusedError\('no database'\)"),
        (lambda: 5, "TypeError.* must return an async context manager, not 5"),
    ],
)
async def test_a_batcher_whose_manager_fails_does_not_open(opens: Any, message: str) -> None:
    batcher: Any = shoal.Batcher(Life().handler, open=opens)
    error = await alone(batcher.__aenter__())
    assert re.match(message, repr(error))
    assert batcher.failure is error


async def of_asyncio(items: list[int]) -> list[int]:
    await asyncio.sleep(0.001)
    return items


@pytest.mark.real_time
def test_a_handler_for_asyncio_is_told_to_use_asyncio() -> None:
    advice = pytest.raises(RuntimeError, match=r'no running event loop.*backend="asyncio"')
    with shoal.blocking(shoal.Batcher(of_asyncio)) as call, advice:
        call(1)
    with shoal.blocking(shoal.Batcher(of_asyncio), backend="asyncio") as call:
        assert call(1) == 1


@pytest.mark.one_loop
async def test_the_advice_passes_a_handler_that_calls_another_once() -> None:
    async with shoal.Batcher(of_asyncio) as inner:

        async def outer(items: list[int]) -> list[int]:
            return [await inner(item) for item in items]

        async with shoal.Batcher(outer) as call:
            error = await outcome(call(1))
    assert str(error).count('backend="asyncio"') == 1
    assert str(error).endswith("see 'Where your code runs' on the page 'Replicas'")


@pytest.mark.real_time
async def test_a_handler_with_a_connection_of_another_thread_is_told_of_warm_up() -> None:
    connection = await anyio.to_thread.run_sync(lambda: sqlite3.connect(":memory:"))

    async def handler(items: list[int]) -> list[Any]:
        return [connection.execute("select 1").fetchone() for _ in items]

    async with shoal.Batcher(handler) as call:
        error = await outcome(call(1))
    assert type(error) is sqlite3.ProgrammingError
    assert "in `async def warm_up(self)`" in str(error)


async def coroutine() -> None: ...
async def generator() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("opens", "message"),
    [
        (5, "open=pool, an @asynccontextmanager function"),
        (Life().opened(), r"write open=pool, not open=pool\(\)"),
        (coroutine, r"write @contextlib\.asynccontextmanager above"),
        (generator, r"write @contextlib\.asynccontextmanager above"),
    ],
)
def test_what_is_no_context_manager_is_refused(opens: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        shoal.Batcher(Life().handler, open=opens)


async def test_it_can_not_be_changed_while_the_batcher_is_open() -> None:
    life = Life()
    batcher = shoal.Batcher(life.handler, open=life.opened)
    async with batcher as call:
        for opens in (None, Life().opened):
            with pytest.raises(ValueError, match="open= can't be changed"):
                batcher.configure(open=opens, max_batch_size=2)
        assert batcher.options.max_batch_size == 10
        batcher.configure(open=life.opened, max_batch_size=2)
        assert await call(1) == "a pool"


async def test_a_handler_of_an_open_batch_a_stream_and_a_method_have_it() -> None:
    life = Life()

    async def open_batch(batch: shoal.OpenBatch[int, str]) -> None:
        async for request in batch:
            await request.finish(pool.get())

    async def steps(items: list[int]) -> AsyncIterator[list[str]]:
        yield [pool.get()] * len(items)

    class Service:
        @shoal.batch(open=life.opened)
        async def fetch(self, items: list[int]) -> list[str]:
            return [pool.get()] * len(items)

    async with shoal.Batcher(open_batch, fill="continuous", open=life.opened) as call:
        assert await call(1) == "a pool"
    async with shoal.Batcher(steps, open=life.opened) as streamed, streamed(1) as stream:
        assert [item async for item in stream] == ["a pool"]
    async with shoal.open_batchers():
        assert await Service().fetch(1) == "a pool"
    assert life.notes == ["opened", "closed"] * 3


@pytest.mark.real_time
def test_blocking_on_trio_says_which_event_loop_the_manager_needs() -> None:
    @asynccontextmanager
    async def needs_asyncio() -> AsyncGenerator[None]:
        await asyncio.sleep(0)
        asyncio.get_running_loop()
        yield

    batcher = shoal.Batcher(Life().handler, open=needs_asyncio)
    with pytest.raises(BaseException) as caught, shoal.blocking(batcher):
        pass
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert 'backend="asyncio"' in str(error)


# What a handler that runs elsewhere learns of the readers of its streams


async def pass_on():
    for _ in range(8):
        await checkpoint()


async def take_item(relay, number):
    relay.put(number, "item")
    relay.offer()
    await pass_on()


async def test_streams_that_began_at_different_times_get_room_in_one_message():
    said, read, relays, stop = [], {}, [], anyio.Event()

    async def send(news):
        said.append(news)
        relays[0].saw(len(said), len(read))

    async def reader(name):
        read[name] = 0
        async with call(name) as stream:
            async for _ in stream:
                read[name] += 1

    async with opening(handler_elsewhere(send, relays, stop)) as (_, call, readers):
        readers.start_soon(reader, "a")
        await pass_on()
        [(first, _, room)] = said[0].joined
        for _ in range(room // 2 - 1):
            await take_item(relays[0], first)
        readers.start_soon(reader, "b")
        await pass_on()
        [(second, _, _)] = said[-1].joined
        await take_item(relays[0], second)
        assert [news.room for news in said] == [{}, {}]
        await take_item(relays[0], first)
        assert [[*news.room] for news in said[2:]] == [[first, second]]
        assert read == {"a": room // 2, "b": 1}
        readers.cancel_scope.cancel()
        stop.set()


def handler_elsewhere(send, relays, stop):
    async def handler(batch):
        relays.append(OpenRelay(batch))
        async with anyio.create_task_group() as tasks:
            relays[0].begin(tasks, send)
            await stop.wait()
            tasks.cancel_scope.cancel()

    return shoal.Batcher(handler, fill="continuous", streams=True, max_batch_size=2)


async def test_only_an_item_without_its_end_is_passed_on_at_once():
    relays, said, passed_on, stop = [], [], [], anyio.Event()

    async def send(news):
        said.append(news)

    def take(item):
        passed_on.append(item)
        return True

    async def reader():
        async with call("a") as stream:
            stream.pass_on(take)
            assert await anext(stream) == "last"
            assert stream.is_finished

    async with opening(handler_elsewhere(send, relays, stop)) as (_, call, readers):
        readers.start_soon(reader)
        await pass_on()
        [(number, _, _)] = said[0].joined
        await take_item(relays[0], number)
        assert passed_on == ["item"]
        relays[0].put(number, "last")
        relays[0].finish(number, None)
        relays[0].offer()
        await pass_on()
        stop.set()
    assert passed_on == ["item"]


async def test_what_happens_while_a_message_is_written_goes_into_the_next():
    said, stop, is_written = [], anyio.Event(), anyio.Event()

    async def send(news):
        said.append([joined.request.item for joined in news.joined])
        await is_written.wait()

    async def reader(name):
        async with call(name) as stream:
            await anext(stream)

    async with handler_elsewhere(send, [], stop) as call, anyio.create_task_group() as readers:
        for name in "ab":
            readers.start_soon(reader, name)
            await pass_on()
        assert said == [["a"]]
        is_written.set()
        await pass_on()
        assert said == [["a"], ["b"]]
        readers.cancel_scope.cancel()
        stop.set()
