"""Where code and constructors run, and what holds there: contexts, draining, tables refused."""

import asyncio
import functools
import logging
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import sniffio

import shoal
from batching.callers import outcome, read
from conformance.replica_scenes import served
from serving import kinds_code
from serving.composed_code import plain_until_draining, until_draining
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

ONE_LOOP = pytest.mark.one_loop


def here() -> list[Any]:
    """Returns the thread, and the kind of event loop that runs in it."""
    try:
        loop: str | None = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        loop = None
    return [os.getpid(), threading.get_ident(), loop]


class _Made:
    def __init__(self) -> None:
        self.made = here()


class Function(_Made):
    async def __call__(self, _: int) -> list[Any]:
        return [self.made, here()]


class Lists(_Made):
    async def __call__(self, items: list[int]) -> list[Any]:
        return [[self.made, here()] for _ in items]


class Batched(_Made):
    @shoal.batch
    async def __call__(self, items: list[int]) -> list[Any]:
        return [[self.made, here()] for _ in items]


class Threaded(_Made):
    """Its ``__call__`` is plain; those of its subclasses have an async method beside it."""

    def __call__(self, _: int) -> list[Any]:
        return [self.made, anyio.from_thread.run_sync(here)]


class Other(Threaded):
    async def other(self, item: int) -> int:
        return item


class Static(Threaded):
    @staticmethod
    async def other(item: int) -> int:
        return item


class Partial(Threaded):
    async def _other(self, item: int, more: int) -> int:
        return item + more

    other = functools.partialmethod(_other, more=1)


class Steps(_Made):
    async def __call__(self, _: int) -> AsyncIterator[list[Any]]:
        yield self.made
        yield here()


@pytest.mark.parametrize(
    ("code", "placement"),
    [
        *((code, "task") for code in (Function, Lists, Batched, Other, Static, Partial)),
        pytest.param(Function, "process", marks=ONE_LOOP),
    ],
)
async def test_the_constructor_of_an_async_class_runs_in_the_event_loop(code, placement):
    async with Controller() as controller:
        config = {"placement": placement}
        await deployed(controller, "code", f"{__name__}:{code.__name__}", config=config)
        made, called = await (await controller.get_handle("code")).call(1)
    assert made == called
    assert made[2] is not None


async def test_that_of_a_class_with_an_async_generator_does_too() -> None:
    async with Controller() as controller:
        await deployed(controller, "code", Steps)
        made, called = await read((await controller.get_handle("code")).stream(1))
    assert made == called


class Plain(_Made):
    def __call__(self, _: int) -> list[Any]:
        return self.made


class PlainBatched(_Made):
    @shoal.batch
    def __call__(self, items: list[int]) -> list[Any]:
        return [self.made for _ in items]


class PlainWithAsyncHook(Plain):
    async def warm_up(self) -> None:
        pass

    async def _helper(self) -> None:
        pass


@pytest.mark.parametrize("code", [Plain, PlainBatched, PlainWithAsyncHook])
async def test_the_constructor_of_a_plain_class_runs_in_a_worker_thread(code: type[_Made]) -> None:
    async with Controller() as controller:
        await deployed(controller, "code", code)
        pid, thread, loop = await (await controller.get_handle("code")).call(1)
    assert (pid, loop) == (os.getpid(), None)
    assert thread != threading.get_ident()


class Raises:
    def __init__(self, how: BaseException) -> None:
        raise how

    async def __call__(self, item: int) -> int:
        return item


@pytest.mark.parametrize("how", [ValueError(7), SystemExit(7), GeneratorExit(7)])
async def test_whatever_the_constructor_of_an_async_class_raises_is_a_failed_start(how):
    async with Controller() as controller:
        error = await outcome(controller.create_backend("code", Raises, how))
        assert isinstance(error, shoal.errors.ReplicaNotStarted)
        assert f"{type(how).__name__}" in str(error)
        await controller.create_backend("other", Function)


class Slow:
    def __init__(self) -> None:
        threading.Event().wait(0.02)

    async def __call__(self, item: int) -> int:
        return item


async def test_a_slow_constructor_of_an_async_class_is_logged_with_advice(caplog, monkeypatch):
    monkeypatch.setattr("shoal.batching.handlers.handler.HELD_LONG_S", 0.01)
    with caplog.at_level(logging.WARNING, "shoal"):
        async with Controller() as controller:
            await controller.create_backend("code", Slow)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "the constructor of Slow held the event loop for 0.0 s; do the slow part"
    )
    assert "`async def warm_up(self)`" in line


class PlainNeedsLoop:
    def __init__(self) -> None:
        asyncio.get_running_loop()

    def __call__(self, item: int) -> int:
        return item


class NeedsLoop(PlainNeedsLoop):
    async def __call__(self, item: int) -> int:  # type: ignore[override]
        return item


@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_a_plain_constructor_that_needs_an_event_loop_is_told_of_warm_up(placement):
    async with Controller() as controller:
        config = {"placement": placement}
        error = await outcome(controller.create_backend("code", PlainNeedsLoop, config=config))
    assert type(error) is shoal.errors.ReplicaNotStarted
    assert "make what needs the loop in `async def warm_up(self)`" in str(error)
    assert "'Where your code runs' on the page 'Replicas'" in str(error)


@pytest.mark.parametrize("placement", ["task", pytest.param("process", marks=ONE_LOOP)])
async def test_an_async_constructor_for_asyncio_is_told_of_it_on_trio(
    placement: str, anyio_backend_name: str
) -> None:
    async with Controller() as controller:
        config = {"placement": placement}
        error = await outcome(controller.create_backend("code", NeedsLoop, config=config))
    if anyio_backend_name == "asyncio":
        assert error is None
    else:
        assert "shoal serve --event-loop asyncio" in str(error)


class Database:
    """Its connection belongs to the thread of the constructor."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.lock = threading.Barrier(2, timeout=HANG_S)

    def __call__(self, item: int) -> int:
        self.lock.wait()  # so that two threads run it
        (found,) = self.connection.execute("select ?", (item,)).fetchone()
        return int(found)


async def test_a_connection_of_another_thread_is_told_of_warm_up_and_of_threads() -> None:
    async with Controller() as controller:
        handle = await deployed(controller, "code", Database, config={"max_concurrent_batches": 2})
        results = await handle.map([1, 2], return_exceptions=True)
    errors = [result for result in results if isinstance(result, Exception)]
    assert errors
    for error in errors:
        assert type(error) is sqlite3.ProgrammingError
        assert "in `async def warm_up(self)` of a class with async methods" in str(error)
        assert 'placement="thread"' in str(error)


@pytest.mark.parametrize(
    ("placement", "code"),
    [
        pytest.param("task", kinds_code.Setting, id="task-async"),
        pytest.param("task", kinds_code.PlainSetting, id="task-plain"),
        pytest.param("thread", kinds_code.PlainSetting, id="thread"),
        pytest.param("process", kinds_code.Setting, id="process-async", marks=ONE_LOOP),
        pytest.param("process", kinds_code.PlainSetting, id="process-plain", marks=ONE_LOOP),
    ],
)
async def test_a_variable_that_code_sets_holds_until_its_call_ends(placement, code):
    async with Controller() as controller:
        config = {"placement": placement, "user_config": {"version": 1}, "max_batch_size": 4}
        handle = await deployed(controller, "code", code, config=config)
        one = handle.options(method_name="one")
        steps = handle.options(method_name="steps")
        for name in "ab":
            assert await handle.call(name) == "nobody"
            assert await one.call(name) == "nobody"
            assert await read(steps.stream(name)) == ["nobody", name]
        await controller.update_backend_config("code", {"user_config": {"version": 2}})
        assert kinds_code.user.get() == "nobody"
        assert await handle.call("c") == "nobody"


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("placement", "code"),
    [
        *((placement, kinds_code.Async) for placement in ("task", "process")),
        *((placement, kinds_code.Plain) for placement in ("task", "thread", "process")),
    ],
)
async def test_a_table_is_refused_as_the_results_of_a_batch(placement: str, code: Any) -> None:
    async with served(code, placement=placement) as handle:
        for kind, advice in kinds_code.KINDS.items():
            with pytest.raises(shoal.errors.WrongResultType, match=advice):
                await handle.call(kind)
            with pytest.raises(shoal.errors.WrongResultType, match=advice):
                async with handle.options(method_name="steps").stream(kind) as steps:
                    await anext(steps)


async def read_on(handle: Any, item: int, begun: anyio.Event, got: list[Any]) -> None:
    async with handle.stream(item) as stream:
        async for step in stream:
            assert step == item
            begun.set()
    got.append(item)


@pytest.mark.parametrize(
    ("code", "placement", "how"),
    [
        (until_draining, "task", "drain"),
        (until_draining, "task", "shutdown"),
        (plain_until_draining, "thread", "drain"),
        (plain_until_draining, "thread", "delete"),
        (until_draining, "process", "drain"),
        pytest.param(plain_until_draining, "process", "delete", marks=ONE_LOOP),
        pytest.param(plain_until_draining, "process", "shutdown", marks=ONE_LOOP),
    ],
)
async def test_streams_without_an_end_end_with_their_backend(code, placement, how):
    got: list[Any] = []
    with anyio.fail_after(HANG_S):
        async with Controller() as controller, anyio.create_task_group() as tasks:
            config = {"placement": placement}
            handle = await deployed(controller, "b", code, config=config, endpoint="e")
            begun = anyio.Event()
            tasks.start_soon(read_on, handle, 1, begun, got)
            await begun.wait()
            if how == "delete":
                await controller.delete_endpoint("e")
                await controller.delete_backend("b")
            elif how == "shutdown":
                await controller.shutdown()
            else:
                controller.drain()
                while got != [1]:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                await controller.restart_backend("b")  # whose new replicas are told as well
                await read_on(handle, 2, anyio.Event(), got)
    assert got[0] == 1
