"""A process that was forked has no copy of the threads that run batches, and is told so at once."""

import os
import subprocess
import sys
from functools import cache

import pytest

from time_limits import HANG_S

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]

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


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("promise", PROMISES)
def test_in_a_fork(promise: str, backend: str) -> None:
    assert promise in ran(backend).stdout.splitlines(), ran(backend).stderr
