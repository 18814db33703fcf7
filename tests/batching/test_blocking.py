"""Blocks of `shoal.blocking`: threads call a handler or a model that is not decorated.

They end at Ctrl-C, in their own handlers, and when they are dropped.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar

import anyio
import pytest

import shoal
from batching.scenes import Recorder
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

EACH_BACKEND = pytest.mark.parametrize("backend", ["trio", "asyncio"])


async def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def countdown(items: list[int]) -> AsyncIterator[list[Any]]:
    for step in range(max(items)):
        yield [item - step if step < item else shoal.END for item in items]


class Model:
    def __init__(self) -> None:
        self.batches: list[dict[str, list[Any]]] = []

    def run(self, *, text: str, top_k: int = 1) -> str: ...

    def run_batch(self, **lists: list[Any]) -> list[str]:
        self.batches.append(lists)
        return [text * top_k for text, top_k in zip(lists["text"], lists["top_k"], strict=True)]


@EACH_BACKEND
def test_threads_call_a_handler_until_the_block_is_left(backend: str) -> None:
    batcher = shoal.Batcher(doubled)
    with shoal.blocking(batcher, backend=backend) as call:
        assert call(21) == 42
        assert call(items=4) == 8
        with pytest.raises(TypeError, match="missing required arguments: 'items'"):
            call()
        assert batcher.is_alive
        assert batcher.statistics().finished == 2
    assert not batcher.is_alive
    with pytest.raises(shoal.errors.BatcherClosed):
        call(1)
    refused = pytest.raises(RuntimeError, match="doubled is closed: a batcher is opened once")
    with refused, shoal.blocking(batcher, backend=backend):
        pytest.fail("it was opened")


@EACH_BACKEND
def test_calls_of_many_threads_with_different_keywords_share_a_batch(backend: str) -> None:
    model = Model()
    batcher = shoal.Batcher.over(model, max_batch_size=8, batch_wait_timeout_s=None)
    with shoal.blocking(batcher, backend=backend) as run, ThreadPoolExecutor(8) as threads:
        plain = [threads.submit(run, text=str(number)) for number in range(4)]
        twice = [threads.submit(run, text=str(number), top_k=2) for number in range(4)]
        assert [future.result(10) for future in plain] == ["0", "1", "2", "3"]
        assert [future.result(10) for future in twice] == ["00", "11", "22", "33"]
    (batch,) = model.batches
    assert sorted(zip(batch["text"], batch["top_k"], strict=True)) == [
        (str(number), top_k) for number in range(4) for top_k in (1, 2)
    ]


@EACH_BACKEND
def test_a_generator_handler_gives_streams(backend: str) -> None:
    with shoal.blocking(shoal.Batcher(countdown), backend=backend) as call, call(3) as stream:
        assert list(stream) == [3, 2, 1]


@EACH_BACKEND
def test_an_error_of_the_handler_reaches_the_thread(backend: str) -> None:
    batcher = shoal.Batcher(Recorder(lambda item: 1 // item))
    with shoal.blocking(batcher, backend=backend) as call:
        with pytest.raises(ZeroDivisionError):
            call(0)
        assert call(1) == 1


@EACH_BACKEND
def test_leaving_the_block_answers_the_calls_under_way(backend: str) -> None:
    started, gate = threading.Event(), threading.Event()

    def handler(items: list[int]) -> list[int]:
        started.set()
        assert gate.wait(HANG_S)
        return items

    with ThreadPoolExecutor(1) as threads:
        with shoal.blocking(shoal.Batcher(handler), backend=backend) as call:
            future = threads.submit(call, 5)
            assert started.wait(HANG_S)
            gate.set()
        assert future.result(10) == 5


@EACH_BACKEND
def test_an_error_in_the_block_closes_the_batcher(backend: str) -> None:
    batcher = shoal.Batcher(doubled)
    with pytest.raises(ZeroDivisionError), shoal.blocking(batcher, backend=backend):
        raise ZeroDivisionError
    assert not batcher.is_alive


class HasMethod:
    @shoal.batch
    async def method(self, items: list[int]) -> list[int]:
        return items


@EACH_BACKEND
@pytest.mark.parametrize("given", [3, doubled, HasMethod(), HasMethod])
def test_what_is_not_batched_is_refused(backend: str, given: Any) -> None:
    told = r"with shoal.blocking\(shoal.Batcher\(handler\)\) as call:"
    with pytest.raises(TypeError, match=told), shoal.blocking(given, backend=backend):
        pytest.fail("it was opened")


def portals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "portal" in thread.name]


def wait_for_portals_to_end() -> None:
    for thread in portals():
        thread.join(HANG_S)
    assert not portals()


async def interrupt() -> None:
    """Sends a Ctrl-C to the main thread, and takes a while."""
    os.kill(os.getpid(), signal.SIGINT)
    await anyio.sleep(0.1)


class Interrupting(shoal.Batcher[Any]):
    """A batcher during whose opening or closing the user presses Ctrl-C."""

    when: ClassVar[str]

    async def __aenter__(self) -> Any:
        if self.when == "entering":
            await interrupt()
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        if self.when == "leaving":
            await interrupt()
        await super().__aexit__(*error)


@EACH_BACKEND
@pytest.mark.parametrize("when", ["entering", "leaving"])
def test_ctrl_c_ends_the_block_at_once(backend, when, monkeypatch):
    monkeypatch.setattr(Interrupting, "when", when, raising=False)
    with pytest.raises(KeyboardInterrupt), shoal.blocking(Interrupting(doubled), backend=backend):
        assert when == "leaving"
    wait_for_portals_to_end()


class Leaving:
    """Handlers that leave the block in which they run."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def plain(self, items: list[int]) -> list[int]:
        self.stack.close()
        return items

    def plain_steps(self, items: list[int]) -> Iterator[list[int]]:
        self.stack.close()
        yield items

    async def coroutine(self, items: list[int]) -> list[int]:
        self.stack.close()
        return items

    async def in_a_thread(self, items: list[int]) -> list[int]:
        await anyio.to_thread.run_sync(self.stack.close)
        return items

    async def open_batch(self, batch: shoal.OpenBatch[int, int]) -> None:
        self.stack.close()


@EACH_BACKEND
@pytest.mark.parametrize("form", ["plain", "plain_steps", "coroutine", "in_a_thread", "open_batch"])
def test_a_handler_that_leaves_its_own_block_is_refused_at_once(backend: str, form: str) -> None:
    leaving = Leaving()
    fill: Any = "open" if form == "open_batch" else "closed"
    batcher: Any = shoal.Batcher(getattr(leaving, form), fill=fill)
    block = shoal.blocking(batcher, backend=backend)
    with block as call:
        # A copy, since a stack forgets what it has closed.
        leaving.stack.push(block.__exit__)
        ask = (lambda: list(call(1).__enter__())) if form == "plain_steps" else (lambda: call(1))
        with pytest.raises(shoal.errors.WouldDeadlock, match="leave it in another thread"):
            ask()
        assert call.statistics().state == "open"
    wait_for_portals_to_end()


@EACH_BACKEND
def test_a_handler_that_calls_itself_is_refused_at_once(backend: str) -> None:
    def handler(items: list[int]) -> list[int]:
        return [call(item) for item in items]

    refused = pytest.raises(shoal.errors.WouldDeadlock)
    with shoal.blocking(shoal.Batcher(handler), backend=backend) as call, refused:
        call(1)


@EACH_BACKEND
def test_a_handler_that_another_handler_calls_is_refused_as_well(backend: str) -> None:
    leaving = Leaving()

    @shoal.batch
    def inner(items: list[int]) -> list[int]:
        leaving.stack.close()
        return items

    @shoal.batch
    async def outer(items: list[int]) -> list[int]:
        return [await inner(item) for item in items]

    block = shoal.blocking(outer, backend=backend)
    with block as call:
        leaving.stack.push(block.__exit__)
        with pytest.raises(shoal.errors.WouldDeadlock):
            call(1)


@EACH_BACKEND
def test_a_handler_may_leave_the_block_of_another(backend: str) -> None:
    other = ExitStack()

    def same(items: list[int]) -> list[int]:
        return items

    call_other = other.enter_context(shoal.blocking(shoal.Batcher(same), backend=backend))

    def handler(items: list[int]) -> list[int]:
        other.close()
        return items

    with shoal.blocking(shoal.Batcher(handler), backend=backend) as call:
        assert call(1) == 1
        with pytest.raises(shoal.errors.BatcherClosed):
            call_other(1)


PROGRAM = """
import sys
import threading
import shoal

@shoal.batch
def handler(items):
    return items

class Actor:
    def __init__(self, how):
        self.block = shoal.blocking(handler, backend=sys.argv[1])
        self.call = self.block.__enter__()
        self.me = self  # found by the collector alone, at the end of the interpreter
        if how == "raises":
            raise ValueError(self.call(1))

def generator():
    with shoal.blocking(shoal.Batcher(sorted), backend=sys.argv[1]):
        yield

try:
    if sys.argv[2] == "a generator":
        actor = generator()
        next(actor)
    elif sys.argv[2] == "a module":
        threading.kept = generator()  # dropped when the modules are empty
        next(threading.kept)
    else:
        actor = Actor(sys.argv[2])
except ValueError as error:
    kept = error
else:
    if sys.argv[2] == "dropped":
        del actor
"""


@pytest.mark.parametrize(
    ("backend", "how"),
    [
        ("trio", "raises"),
        ("trio", "kept"),
        ("asyncio", "dropped"),
        ("asyncio", "a generator"),
        ("trio", "a module"),
    ],
)
def test_a_block_that_nobody_leaves_keeps_no_process_alive(backend: str, how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, backend, how]
    assert subprocess.run(command, timeout=HANG_S, check=True, stderr=subprocess.PIPE).stderr == b""
