"""Callers in threads: worker threads of an event loop, and programs that have none."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import trio

import shoal
from batching.scenes import Held, Recorder, opening, settle
from shoal.loops.unlimited import UNLIMITED
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@shoal.batch(max_batch_size=4)
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


@shoal.batch
async def count(items: list[int]) -> AsyncIterator[list[Any]]:
    for number in range(max(items)):
        yield [number if number < item else shoal.END for item in items]


@shoal.batch
async def names(items: list[int], suffix: list[str] = "!") -> list[str]:  # type: ignore[assignment]
    return [f"{item}{end}" for item, end in zip(items, suffix, strict=True)]


async def test_a_worker_thread_calls_through_from_thread() -> None:
    async with shoal.open_batchers(double, names):
        assert await anyio.to_thread.run_sync(double.from_thread, 21) == 42
        assert await anyio.to_thread.run_sync(names.from_thread, 1, "?") == "1?"
        assert await anyio.to_thread.run_sync(lambda: names.from_thread(1, suffix=".")) == "1."


async def test_calls_of_many_worker_threads_share_a_batch(recorder: Recorder) -> None:
    got: list[int] = []

    async def in_thread(call: Any, item: int) -> None:
        got.append(await anyio.to_thread.run_sync(call.from_thread, item))

    async with opening(recorder, max_batch_size=8, batch_wait_timeout_s=None) as (_, call, tasks):
        for item in range(8):
            tasks.start_soon(in_thread, call, item)
    assert sorted(got) == list(range(8))
    assert [sorted(batch) for batch in recorder.batches] == [list(range(8))]


async def test_an_error_reaches_the_worker_thread() -> None:
    async with shoal.Batcher(Recorder(lambda item: 1 // item)) as call:
        with pytest.raises(ZeroDivisionError):
            await anyio.to_thread.run_sync(call.from_thread, 0)
        with pytest.raises(TypeError):
            await anyio.to_thread.run_sync(call.from_thread)


async def test_a_worker_thread_that_leaves_a_stream_frees_its_slot() -> None:
    def read_one() -> int:
        with count.from_thread(1000) as stream:
            return next(stream)

    async with shoal.open_batchers(count):
        assert await anyio.to_thread.run_sync(read_one) == 0
        await settle()
        assert count.batcher.statistics().running == 0
        assert count.batcher.statistics().cancelled == 1


async def test_a_thread_stream_must_be_entered() -> None:
    async with shoal.open_batchers(count):
        with pytest.raises(RuntimeError, match="enter the stream first"):
            await anyio.to_thread.run_sync(lambda: next(count.from_thread(1)))


async def test_from_thread_is_not_for_the_event_loop_itself() -> None:
    async with shoal.open_batchers(double):
        with pytest.raises(shoal.errors.NotOpen, match=r"shoal.blocking\(f\)"):
            double.from_thread(1)


async def test_a_coroutine_of_a_plain_handler_is_refused_beside_errors_of_other_items() -> None:
    errors = [ValueError(), KeyError(), OSError(), EOFError(), ArithmeticError(), LookupError()]

    def handler(items: list[int]) -> list[Any]:
        return [*errors, settle()]

    async with shoal.Batcher(handler, max_batch_size=7, batch_wait_timeout_s=None) as call:
        found = await call.map(range(7), return_exceptions=True)
    assert [type(one) for one in found[:6]] == [type(one) for one in errors]
    assert isinstance(found[6], shoal.errors.WrongResultType)


async def test_a_plain_handler_that_forgets_to_wait_for_a_call_is_told_how() -> None:
    async def other(item: int) -> int:
        return item

    def outer(items: list[int]) -> list[Any]:
        return [double(item) for item in items]

    def outer_of_others(items: list[int]) -> list[Any]:
        return [other(item) for item in items]

    async with shoal.open_batchers(double), shoal.Batcher(outer) as call:
        with pytest.raises(shoal.errors.WrongResultType, match=r"a coroutine,.* f\.from_thread"):
            await call(4)
        assert double.batcher.statistics().finished == 0
    async with shoal.Batcher(outer_of_others) as call:
        with pytest.raises(shoal.errors.WrongResultType, match=r"a coroutine,.*from_thread\.run"):
            await call(4)


async def test_a_thread_has_no_batcher_of_the_loop_that_started_it() -> None:
    def call_as_in_a_loop() -> None:
        double(1).send(None)

    async with shoal.open_batchers(double):
        with pytest.raises(
            shoal.errors.NotOpen, match=r"(?s)runs no event loop; .*shoal\.blocking"
        ):
            await anyio.to_thread.run_sync(call_as_in_a_loop)


class Model:
    @shoal.batch
    async def predict(self, items: list[int]) -> list[int]:
        return [-item for item in items]


@BACKENDS
async def test_a_batcher_is_made_in_one_event_loop_and_opened_in_another(backend: str) -> None:
    """Of another kind, too."""
    batcher = shoal.Batcher(Recorder())
    streams = shoal.Batcher(count.parts()[0])

    def in_a_thread() -> list[list[int]]:
        with (
            shoal.blocking(batcher, backend=backend) as call,
            shoal.blocking(streams, backend=backend) as stream,
            stream(2) as steps,
        ):
            return [call.map([1, 2]), list(steps)]

    assert await anyio.to_thread.run_sync(in_a_thread) == [[1, 2], [0, 1]]


@BACKENDS
def test_blocking_serves_a_method(backend: str) -> None:
    with shoal.blocking(Model().predict, backend=backend) as call:
        assert call(1) == -1


async def test_a_cancelled_host_drops_the_request_of_its_thread(held: Held) -> None:
    async with shoal.Batcher(held) as call:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, call.from_thread, 1)
                while not held.batches:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        await settle()
    assert held.cancelled == [[1]]


@BACKENDS
def test_a_blocking_call_has_the_face_of_the_async_one(backend: str) -> None:
    seen: list[Any] = []

    @shoal.batch(max_batch_size=4)
    async def handler(items: list[int], factor: list[int] = 2) -> list[float]:  # type: ignore[assignment]
        seen.append([request.metadata for request in shoal.current_batch().requests])
        return [f / item for item, f in zip(items, factor, strict=True)]

    with shoal.blocking(handler, backend=backend) as call:
        assert call.options(metadata={"user": 1})(2) == 1
        assert seen == [[{"user": 1}]]
        assert call.map([1, 2], [2, 4]) == [2, 2]
        with pytest.raises(ZeroDivisionError):
            call.map([0], [1])
        (error,) = call.map([0], [1], return_exceptions=True)
        assert isinstance(error, ZeroDivisionError)
        call.configure(max_batch_size=1, batch_wait_timeout_s=0)
        call.configure(max_queued_requests=9)
        call.flush()
        assert call.map(iter([1, 2]), iter([1, 2])) == [1, 1]
        assert call.statistics().finished == 5
        with pytest.raises(TypeError, match="not an option"):
            call.configure(batch_size=1)  # type: ignore[call-arg]
    with pytest.raises(shoal.errors.BatcherClosed):
        call.statistics()


def keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "shoal keeps a block"}


@BACKENDS
def test_a_dropped_blocking_block_that_is_closed_in_an_event_loop_does_not_stop_that(backend):
    """The garbage collector runs where it likes; closing a generator by hand does the same."""
    begun, gate = threading.Event(), threading.Event()
    waited: list[bool] = []

    @shoal.batch
    def slow(items: list[int]) -> list[int]:
        begun.set()
        waited.append(gate.wait(3))
        return items

    def use() -> Any:
        with shoal.blocking(slow) as call:
            yield call

    @shoal.batch
    async def healthy(items: list[int]) -> list[int]:
        dropped.pop().close()
        gate.set()
        return items

    dropped = [use()]
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(next(dropped[0]), 7)
        assert begun.wait(HANG_S)
        with shoal.blocking(healthy, backend=backend) as call:
            assert call(1) == 1
        assert future.result(10) == 7
    assert waited == [True]


def test_so_does_one_that_is_closed_between_two_tasks() -> None:
    def use() -> Any:
        with shoal.blocking(double):
            yield

    class Collector(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            while dropped:
                dropped.pop().close()

    dropped = [use()]
    before = set(threading.enumerate())
    next(dropped[0])
    (keeper,) = keepers() - before
    trio.run(trio.sleep, 0, instruments=[Collector()])
    keeper.join(HANG_S)
    assert not keeper.is_alive()
    assert not dropped


def test_a_blocking_block_in_a_task_of_trio_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"async with shoal\.open_batchers\("):
            shoal.blocking(double).__enter__()

    trio.run(main)


@BACKENDS
def test_a_blocking_block_that_is_dropped_without_being_left_is_closed(backend: str) -> None:
    before = set(threading.enumerate())
    batcher = shoal.Batcher(Recorder())
    call = shoal.blocking(batcher, backend=backend).__enter__()
    (keeper,) = keepers() - before
    gc.collect()
    assert call(1) == 1  # who holds the call holds the block
    del call
    gc.collect()
    keeper.join(HANG_S)
    assert not batcher.is_alive
    assert not keeper.is_alive()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_of_asyncio_to_thread_calls() -> None:
    async with shoal.open_batchers():
        assert await asyncio.to_thread(double.from_thread, 4) == 8
        assert await asyncio.to_thread(Model().predict.from_thread, 4) == -4


async def in_own_thread(function: Any) -> Any:
    """Calls a function in a thread of the test's own making."""
    with ThreadPoolExecutor(1) as threads:
        return await anyio.to_thread.run_sync(threads.submit(function).result)


async def test_a_thread_of_the_programs_own_calls_what_is_open_in_one_event_loop() -> None:
    model = Model()

    def read() -> list[int]:
        with count.from_thread(3) as stream:
            return list(stream)

    async with shoal.open_batchers(double, count, model.predict), shoal.Batcher(Held()) as held:
        assert await in_own_thread(lambda: double.from_thread(4)) == 8
        assert await in_own_thread(lambda: double.options(metadata={}).from_thread(4)) == 8
        assert await in_own_thread(lambda: model.predict.from_thread(4)) == -4
        assert await in_own_thread(read) == [0, 1, 2]
        with pytest.raises(TypeError):
            await in_own_thread(lambda: double.from_thread())
        assert held is not None
    with pytest.raises(shoal.errors.NotOpen, match=r"not open in an event loop"):
        await in_own_thread(lambda: double.from_thread(4))


async def test_of_two_event_loops_the_thread_says_which() -> None:
    opened, done = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with shoal.open_batchers(double):
            opened.set()
            await anyio.to_thread.run_sync(done.wait)

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(anyio.run, elsewhere)
        try:
            async with shoal.open_batchers(double):
                assert await anyio.to_thread.run_sync(opened.wait, 10)
                with pytest.raises(
                    shoal.errors.NotOpen, match=r"in 2 event loops(.|\n)*batcher\.call"
                ):
                    await in_own_thread(lambda: double.from_thread(4))
                call = double.batcher.call
                assert await in_own_thread(lambda: call.from_thread(4)) == 8
        finally:
            done.set()
        other.result(10)


# Threads that start at once, since nothing limits them


def test_a_thread_need_not_wait_for_tasks_that_are_ready() -> None:
    for step in (
        UNLIMITED.acquire_on_behalf_of(object()),
        UNLIMITED.__aenter__(),
        UNLIMITED.__aexit__(None, None, None),
    ):
        with pytest.raises(StopIteration):  # it has ended without giving the task back
            step.send(None)


async def test_any_number_of_threads_run_at_once() -> None:
    all_run = threading.Barrier(60)
    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(lambda: anyio.to_thread.run_sync(all_run.wait, limiter=UNLIMITED))


async def test_a_thread_of_a_cancelled_task_does_not_begin() -> None:
    ran: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.to_thread.run_sync(ran.append, 1, limiter=UNLIMITED)
    assert scope.cancelled_caught
    assert not ran
