"""A process that was forked has no copy of the threads that run batches, and is told so at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])

COMMON = """
import anyio, os, sys, threading, warnings
import shoal

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

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
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def run(program: str, backend: str = "") -> None:
    program = COMMON + textwrap.dedent(program).replace("BACKEND", repr(backend))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


@BACKENDS
def test_a_blocking_call_is_refused_and_the_parent_goes_on(backend: str) -> None:
    run(
        """
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
        """,
        backend,
    )


@BACKENDS
def test_so_is_a_stream_and_leaving_one_does_nothing(backend: str) -> None:
    run(
        """
        with shoal.blocking(steps, backend=BACKEND) as call:
            with call(1) as stream:
                def child():
                    told(shoal.errors.NotOpen, lambda: next(stream), "fork")
                    told(shoal.errors.NotOpen, lambda: call(1).__enter__(), "fork")
                    stream.__exit__(None, None, None)
                in_fork(child)
                assert list(stream) == [1]
        """,
        backend,
    )


@BACKENDS
def test_a_block_can_be_left_in_a_fork(backend: str) -> None:
    run(
        """
        def leave():
            block.__exit__(None, None, None)

        def forget():
            global block, call
            del block, call

        for way in (leave, forget):
            block = shoal.blocking(double, backend=BACKEND)
            call = block.__enter__()
            in_fork(way)
            assert call(3) == 6
            block.__exit__(None, None, None)
        """,
        backend,
    )


@BACKENDS
def test_the_rest_of_a_program_may_run_in_a_fork(backend: str) -> None:
    run(
        """
        with shoal.blocking(double, backend=BACKEND) as call:
            child = os.fork()
        if child == 0:
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        """,
        backend,
    )


@BACKENDS
def test_a_call_from_a_thread_is_refused(backend: str) -> None:
    run(
        """
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
        """,
        backend,
    )


def test_a_client_for_plain_code_is_refused() -> None:
    run(
        """
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
            child = os.fork()
        if child == 0:
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        """
    )
