"""Calls in a thread in which a function is not open, while it is open in another one.

A process that was forked has no copy of the threads that run batches, and is told so at once.
"""

import asyncio
import copy
import os
import subprocess
import sys
import threading
from functools import cache
from typing import Any, Self

import anyio
import pytest

import shoal
from batching.scenes import settle
from shoal.batching.decorator.registry import Opening
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


def function(**options: Any) -> Any:
    async def echo(numbers: list[int]) -> list[int]:
        return numbers

    return shoal.batch(**options)(echo)


def deadlines(**options: Any) -> Any:
    """Returns a function whose calls return how long they have, in seconds; None for no limit."""

    async def left(numbers: list[int]) -> list[float | None]:
        now = anyio.current_time()
        ends = [request.deadline for request in shoal.current_batch().requests]
        return [None if end is None else end - now for end in ends]

    return shoal.batch(**options)(left)


def holding() -> tuple[Any, anyio.Event]:
    """Returns a function, and an event that its calls wait for."""
    went_on = anyio.Event()

    async def held(numbers: list[int]) -> list[int]:
        await went_on.wait()
        return numbers

    return shoal.batch(held), went_on


class OpenInThread:
    """Keeps a function open in a thread with an event loop."""

    def __init__(self, function: Any, configured: dict[str, Any] | None = None) -> None:
        self._function, self._configured = function, configured
        self._open, self._close = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: anyio.run(self._run))

    async def _run(self) -> None:
        async with shoal.open_batchers(self._function):
            if self._configured:
                self._function.batcher.configure(**self._configured)
            self._open.set()
            await anyio.to_thread.run_sync(self._close.wait)

    def __enter__(self) -> Self:
        self._thread.start()
        self._open.wait()
        return self

    def close(self) -> None:
        self._close.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()


async def test_a_call_is_made_here_if_the_other_thread_has_closed_it_meanwhile() -> None:
    echo = function()
    async with shoal.open_batchers():
        with OpenInThread(echo) as there:
            call = echo(3)
            there.close()
            assert await call == 3


@pytest.mark.parametrize("where", ["here", "call", "there"])
async def test_the_time_limits_of_this_thread_apply(where: str) -> None:
    left = deadlines()
    with OpenInThread(left, {"request_timeout_s": 60} if where == "there" else None):
        if where == "here":
            left.configure(request_timeout_s=60)
        async with shoal.open_batchers():
            call = left.options(timeout_s=60) if where == "call" else left
            for _ in range(2):
                limit_s = await call(3)
                assert limit_s is None if where == "there" else 0 < limit_s <= 60


async def test_calls_of_this_thread_are_shared() -> None:
    held, went_on = holding()
    with OpenInThread(held):
        held.configure(dedupe=True)
        async with shoal.open_batchers(), anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(held, 3)
            await settle()
            assert held.batcher.statistics().shared == 1
            went_on.set()


async def test_a_copy_of_an_open_function_can_be_called_when_it_is_open_again() -> None:
    echo = function()
    async with shoal.open_batchers(echo):
        copied = copy.copy(echo)
    async with shoal.open_batchers(echo):
        assert await copied(3) == 3


async def test_a_call_while_another_thread_is_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread has set what makes calls, but not yet where they are made elsewhere."""
    echo = function()
    added, may_go_on = threading.Event(), threading.Event()
    add = Opening._add

    def slow(*args: Any) -> None:
        add(*args)
        if threading.current_thread().name == "opening":
            added.set()
            may_go_on.wait(HANG_S)

    monkeypatch.setattr(Opening, "_add", slow)
    there = OpenInThread(echo)
    there._thread.name = "opening"
    there._thread.start()
    async with shoal.open_batchers():
        try:
            assert added.wait(HANG_S)
            assert await echo(3) == 3
        finally:
            may_go_on.set()
            there._open.wait()
            there.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", ["plain", "options", "batcher"])
def test_a_loop_may_go_on_in_another_thread(kind: str, anyio_backend: str) -> None:
    """A batcher belongs to an event loop, and not to a thread."""
    echo = function(**({"request_timeout_s": 9} if kind == "options" else {}))
    loop = asyncio.new_event_loop()
    results: list[int] = []
    batcher = shoal.Batcher(echo.parts()[0])

    async def run() -> None:
        async with shoal.open_batchers(echo), batcher as call:
            results.append(await echo(1))
            loop.stop()  # and another thread goes on
            await asyncio.sleep(0)
            results.append(await (call if kind == "batcher" else echo)(2))

    task = loop.create_task(run())
    loop.run_forever()
    assert results == [1]
    thread = threading.Thread(target=loop.run_until_complete, args=(task,))
    thread.start()
    thread.join()
    loop.close()
    assert task.exception() is None
    assert results == [1, 2]


# Each function whose name begins with an article is a promise.
PROGRAM = """
import anyio, os, sys, threading, traceback, warnings
import shoal

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
BACKEND = sys.argv[1]

@shoal.batch
def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]

@shoal.batch
def steps(items: list[int]):
    yield items

def told(kind, function, *words):
    try:
        function()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("it was not refused")

def in_fork(function):
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status

def a_blocking_call_is_refused_and_the_parent_goes_on():
    with shoal.blocking(double, backend=BACKEND) as call:
        assert call(1) == 2
        def child():
            told(shoal.errors.NotOpen, lambda: call(1), "fork", str(os.getppid()))
            told(shoal.errors.NotOpen, lambda: call.map([1]), "fork")
            told(shoal.errors.NotOpen, call.statistics, "fork")
            with shoal.blocking(double, backend=BACKEND) as own:
                assert own(2) == 4
        in_fork(child)
        assert call(3) == 6

def a_stream_is_refused_and_leaving_one_does_nothing():
    with shoal.blocking(steps, backend=BACKEND) as call:
        with call(1) as stream:
            def child():
                told(shoal.errors.NotOpen, lambda: next(stream), "fork")
                told(shoal.errors.NotOpen, lambda: call(1).__enter__(), "fork")
                stream.__exit__(None, None, None)
            in_fork(child)
            assert list(stream) == [1]

def a_block_can_be_left_in_a_fork():
    def leave():
        block.__exit__(None, None, None)

    def forget():
        nonlocal block, call
        del block, call

    for way in (leave, forget):
        block = shoal.blocking(double, backend=BACKEND)
        call = block.__enter__()
        in_fork(way)
        assert call(3) == 6
        block.__exit__(None, None, None)

def a_call_from_a_thread_is_refused():
    def forking():
        in_fork(lambda: told(shoal.errors.NotOpen, lambda: double.from_thread(1), "forked"))

    async def main():
        for opened in (shoal.open_batchers(double), shoal.open_batchers()):
            async with opened:
                assert await double(1) == 2
                await anyio.to_thread.run_sync(forking)
                assert await double(1) == 2
                thread = threading.Thread(target=forking)
                thread.start()
                await anyio.to_thread.run_sync(thread.join)
                assert await double(1) == 2

    anyio.run(main, backend=BACKEND)

def a_client_for_plain_code_is_refused():
    with shoal.start() as client:
        client.create_backend("b", lambda x: x)
        client.create_endpoint("e", backend="b")
        handle = client.get_handle("e")
        assert handle.call(1) == 1
        def child():
            told(shoal.errors.ShutDown, lambda: handle.call(1), "fork")
            told(shoal.errors.ShutDown, client.list_backends, "fork")
        in_fork(child)
        assert handle.call(1) == 1

def the_rest_of_a_program_may_run_in_a_fork():
    with shoal.blocking(double, backend=BACKEND), shoal.start():
        child = os.fork()
    if child == 0:
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status

for name, promise in list(globals().items()):
    if name.startswith(("a_", "the_")):
        try:
            promise()
        except Exception:
            traceback.print_exc()
        else:
            print(name, flush=True)
"""
PROMISES = [
    line.removeprefix("def ").removesuffix("():")
    for line in PROGRAM.splitlines()
    if line.startswith(("def a_", "def the_"))
]


@cache
def ran(backend: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, backend]
    return subprocess.run(command, check=False, timeout=HANG_S, capture_output=True, text=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("promise", PROMISES)
def test_in_a_fork(promise: str, backend: str) -> None:
    assert promise in ran(backend).stdout.splitlines(), ran(backend).stderr
