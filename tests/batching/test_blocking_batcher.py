"""`shoal.blocking` of a batcher: threads call a handler or a model that is not decorated."""

import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import shoal
from batching.scenes import Recorder
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("backend", ["trio", "asyncio"])]


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
    with (
        pytest.raises(RuntimeError, match="doubled is closed: a batcher is opened once"),
        shoal.blocking(batcher, backend=backend),
    ):
        pytest.fail("it was opened")


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


def test_a_generator_handler_gives_streams(backend: str) -> None:
    with shoal.blocking(shoal.Batcher(countdown), backend=backend) as call, call(3) as stream:
        assert list(stream) == [3, 2, 1]


def test_an_error_of_the_handler_reaches_the_thread(backend: str) -> None:
    batcher = shoal.Batcher(Recorder(lambda item: 1 // item))
    with shoal.blocking(batcher, backend=backend) as call:
        with pytest.raises(ZeroDivisionError):
            call(0)
        assert call(1) == 1


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


def test_an_error_in_the_block_closes_the_batcher(backend: str) -> None:
    batcher = shoal.Batcher(doubled)
    with pytest.raises(ZeroDivisionError), shoal.blocking(batcher, backend=backend):
        raise ZeroDivisionError
    assert not batcher.is_alive


class HasMethod:
    @shoal.batch
    async def method(self, items: list[int]) -> list[int]:
        return items


@pytest.mark.parametrize("given", [3, doubled, HasMethod(), HasMethod])
def test_what_is_not_batched_is_refused(backend: str, given: Any) -> None:
    told = r"with shoal.blocking\(shoal.Batcher\(handler\)\) as call:"
    with pytest.raises(TypeError, match=told), shoal.blocking(given, backend=backend):
        pytest.fail("it was opened")
