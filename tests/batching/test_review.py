"""Corners: each of these was once found by reading the engine against its promises."""

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import Caller, launch, line_up, outcome, outcomes, outcomes_in_order
from batching.scenes import Held, Recorder, opening, settle
from shoal.batching.stream_buffer import StreamBuffer
from shoal.core.timers import Overdue
from time_limits import HANG_S


async def test_two_tasks_that_open_a_function_in_one_tick_do_not_both_get_it() -> None:
    function = shoal.batch(Recorder())
    seen: list[Any] = []

    async def opener(open_for_s: float) -> None:
        try:
            async with shoal.open_batchers(function):
                await anyio.sleep(open_for_s)
                seen.append(await outcome(function(1)))
        except RuntimeError as error:
            seen.append(type(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opener, 1)
        tasks.start_soon(opener, 2)
    assert sorted(map(str, seen)) == sorted(map(str, [1, RuntimeError]))


async def test_opening_a_batcher_again_in_vain_does_not_harm_the_open_one() -> None:
    batcher = shoal.Batcher(Held(), graceful_shutdown_timeout_s=100)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with batcher as call:
                with suppress(Exception):
                    await batcher.__aenter__()
                (elsewhere,) = await launch(tasks, call(1))
                scope.cancel()
                await anyio.sleep_forever()
    assert isinstance(elsewhere.outcome, shoal.errors.BatcherClosed)
    assert elsewhere.ended_at == 0


@pytest.mark.real_time
async def test_a_thread_whose_host_is_cancelled_gives_its_stream_back() -> None:
    reading = threading.Event()
    cancelled = threading.Event()

    async def steps(items: list[int]) -> AsyncIterator[list[int]]:
        while True:
            yield items
            await anyio.lowlevel.checkpoint()

    batcher = shoal.Batcher(steps, slow_reader_timeout_s=None, graceful_shutdown_timeout_s=0)

    def read() -> None:
        with suppress(BaseException), batcher.call.from_thread(1) as stream:
            next(stream)
            reading.set()
            cancelled.wait(HANG_S)
            next(stream)

    async def cancel(scope: anyio.CancelScope) -> None:
        await anyio.to_thread.run_sync(reading.wait, 5)
        scope.cancel()
        cancelled.set()

    async with batcher:
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel, scope)
                await anyio.to_thread.run_sync(read)
        await anyio.sleep(0.05)
        assert batcher.statistics().running == 0
        assert batcher.statistics().cancelled == 1


@pytest.mark.real_time
@pytest.mark.parametrize("what", ["flush", "drain", "configure"])
async def test_a_batcher_survives_being_steered_from_another_thread(what: str) -> None:
    batcher = shoal.Batcher(Recorder(), graceful_shutdown_timeout_s=0.1)
    async with batcher as call:
        assert await call(1) == 1
        await settle()
        with suppress(RuntimeError):
            await anyio.to_thread.run_sync(getattr(batcher, what))
        answer: Any = None
        with anyio.move_on_after(1):
            answer = await call(2)
        assert answer == 2


@pytest.mark.parametrize("isolate", [False, True])
async def test_a_handler_that_turns_its_time_out_into_an_error_has_timed_out(isolate: bool) -> None:
    runs: list[list[int]] = []

    async def handler(items: list[int]) -> list[int]:
        runs.append(items)
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise ValueError("connection lost") from None
        return items

    options: Any = {"handler_timeout_s": 1, "isolate_errors": isolate, "max_batch_size": 2}
    async with shoal.Batcher(handler, batch_wait_timeout_s=None, **options) as call:
        got = await outcomes_in_order(call(1), call(2))
    assert runs == [[1, 2]]
    assert [type(error) for error in got] == [shoal.errors.HandlerTimeout] * 2


async def test_a_time_out_of_one_part_of_an_isolated_batch_leaves_the_other_its_run() -> None:
    async def handler(items: list[str]) -> list[str]:
        if "bad" in items:
            raise ValueError
        if "slow" in items:
            await anyio.sleep_forever()
        return items

    options: Any = {"handler_timeout_s": 1, "isolate_errors": True, "max_batch_size": 4}
    async with shoal.Batcher(handler, batch_wait_timeout_s=None, **options) as call:
        got = await outcomes_in_order(call("slow"), call("good"), call("bad"), call("fine"))
    assert got[3] == "fine"
    assert isinstance(got[2], ValueError)


async def test_errors_of_an_isolated_batch_are_not_chained_to_each_other() -> None:
    async def handler(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError(items)
        return items

    options: Any = {"batch_wait_timeout_s": None, "isolate_errors": True}
    async with shoal.Batcher(handler, max_batch_size=4, **options) as call:
        got = await outcomes_in_order(*map(call, [1, 2, 0, 3]))
    assert got[2].__cause__.__context__ is None


async def test_a_bug_in_the_task_of_the_deadlines_is_named_to_every_caller(monkeypatch):
    bug = ZeroDivisionError("a bug of ours")

    def broken(*_: object) -> None:
        raise bug

    monkeypatch.setattr(Overdue, "expired", broken)
    batcher = shoal.Batcher(Held())
    got: list[Any] = []
    with pytest.raises(BaseExceptionGroup):  # noqa: PT012
        async with anyio.create_task_group() as tasks:
            call = await tasks.start(batcher.run)
            with anyio.CancelScope(shield=True):
                got += await outcomes(call.options(timeout_s=1)(1), call(2))
    assert all(isinstance(error, shoal.errors.BatcherClosed) for error in got)
    assert all(error.__cause__ is bug for error in got)
    assert batcher.failure is bug
    assert batcher.statistics().state == "broken"


var: ContextVar[str] = ContextVar("var", default="nobody's")


async def test_a_slot_does_not_run_in_the_context_of_whoever_asked_for_it() -> None:
    seen: list[str] = []
    gate = anyio.Event()

    async def handler(items: list[int]) -> list[int]:
        seen.append(var.get())
        await gate.wait()
        return items

    batcher = shoal.Batcher(handler, max_batch_size=1)

    async def configure() -> None:
        var.set("a request's")
        batcher.configure(max_concurrent_batches=2)

    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(configure)
        await settle()
        await launch(tasks, call(1), call(2))
        gate.set()
    assert seen == ["nobody's", "nobody's"]


class Unprintable(Exception):
    def __new__(cls, *args: Any) -> Any:
        if not args:
            raise TypeError("one argument, please")
        return super().__new__(cls)

    def __init__(self, code: Any) -> None:
        self.args = ()

    def __str__(self) -> str:
        raise KeyError("no message")


class Frozen(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("error", "kind"), [(Unprintable(1), shoal.errors.HandlerFailed), (Frozen("x"), Frozen)]
)
async def test_no_exception_of_a_handler_breaks_the_batcher(error, kind):
    async def handler(items: list[int]) -> list[int]:
        if items == [0]:
            raise error
        return items

    async with shoal.Batcher(handler, max_batch_size=1) as call:
        assert type(await outcome(call(0))) is kind
        assert await call(1) == 1


@pytest.mark.parametrize(("after", "limit"), [(0.4, 0.1), (0.3, 2.0), (0.8, 1.5), (0.5, 0.9)])
async def test_the_allowance_of_a_slow_reader_ends_whatever_floats_make_of_it(
    after: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = 0
    begin_hold = StreamBuffer.begin_hold

    def counted(self: StreamBuffer, hold: Any, now: float) -> None:
        nonlocal holds
        holds += 1
        assert holds < 20, "a busy loop"
        begin_hold(self, hold, now)

    monkeypatch.setattr(StreamBuffer, "begin_hold", counted)

    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        # At that time on a clock that began at 0, as virtual ones do.
        await anyio.sleep_until(after)
        while True:
            yield items

    batcher = shoal.Batcher(handler, stream_buffer=1, slow_reader_timeout_s=limit)
    async with batcher as call, call(1) as stream:
        await anyio.sleep(5)
        assert await anext(stream) == 1
        with pytest.raises(shoal.errors.SlowReader):
            await anext(stream)


async def test_a_generator_that_goes_on_for_nobody_lets_others_run() -> None:
    turns = 0
    steps = 0
    reader_left = False

    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        nonlocal steps
        while not reader_left:
            yield [0]
        for _ in range(1000):
            steps += 1
            yield [0]

    async def watch() -> None:
        nonlocal turns
        while steps < 1000:
            await anyio.lowlevel.checkpoint()
            turns += reader_left

    async with opening(handler, cancel_abandoned=False) as (_, call, tasks):
        async with call(1) as stream:
            await anext(stream)
        reader_left = True
        tasks.start_soon(watch)
    assert turns > 100


async def test_a_flush_does_not_pass_on_from_those_who_left_as_they_were_taken() -> None:
    gate = anyio.Event()
    leavers: list[Caller] = []
    batches: list[tuple[float, list[Any]]] = []

    async def handler(items: list[Any]) -> list[Any]:
        batches.append((anyio.current_time(), items))
        await gate.wait()
        for caller in leavers:
            caller.leave()  # they have no turn before the next batch is formed
        return items

    batcher = shoal.Batcher(handler, max_batch_size=3, batch_wait_timeout_s=10)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, call(1), call(2), call(3))  # the slot is busy with these
        leavers += await line_up(tasks, call("a"), call("b"))
        batcher.flush()
        await line_up(tasks, call("c"))
        gate.set()
        await anyio.sleep(20)
    assert batches[1:] == [(10, ["c"])]


async def test_a_stream_that_is_not_entered_is_left_wherever_its_reader_is_cancelled() -> None:
    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        while True:
            yield items

    batcher = shoal.Batcher(handler, stream_buffer=4, slow_reader_timeout_s=None)
    async with batcher as call:
        stream = call(1)
        with anyio.CancelScope() as scope:
            async for _ in stream:
                await settle()  # the buffer is full by then
                scope.cancel()
        await settle()
        try:
            assert batcher.statistics().running == 0
        finally:
            await stream.aclose()


async def test_two_readers_in_one_tick_do_not_see_an_end_that_is_not_there() -> None:
    gate = anyio.Event()

    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        await gate.wait()
        yield items

    async with shoal.Batcher(handler) as call, call(1) as stream:
        await settle()
        got: list[Any] = []

        async def read() -> None:
            try:
                got.append(await anext(stream, "end"))
            except RuntimeError:
                got.append("refused")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
            await settle()
            gate.set()
    assert "end" not in got


BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@pytest.mark.real_time
@BACKENDS
def test_a_thread_may_leave_its_ended_stream_after_the_block(backend: str) -> None:
    read, left = threading.Event(), threading.Event()

    @shoal.batch
    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        yield items

    def reader(call: Any) -> list[int]:
        with call(1) as stream:
            items = list(stream)
            read.set()
            left.wait(HANG_S)
        return items

    with ThreadPoolExecutor(1) as threads:
        with shoal.blocking(handler, backend=backend) as call:
            future = threads.submit(reader, call)
            assert read.wait(HANG_S)
        left.set()
        assert future.result(5) == [1]


async def _in_a_loop_of_its_own() -> int:
    return 7


@pytest.mark.real_time
@pytest.mark.parametrize("other", ["trio", "asyncio"])
async def test_a_plain_generator_may_run_an_event_loop_in_its_thread(other: str) -> None:
    def handler(items: list[int]) -> Iterator[list[int]]:
        yield [anyio.run(_in_a_loop_of_its_own, backend=other) for _ in items]

    async with shoal.Batcher(handler) as call, call(1) as stream:
        assert [x async for x in stream] == [7]


@pytest.mark.real_time
async def test_a_plain_generator_may_call_another_batched_function() -> None:
    async with shoal.Batcher(Recorder()) as inner:

        def handler(items: list[int]) -> Iterator[list[int]]:
            yield [inner.from_thread(item) for item in items]

        async with shoal.Batcher(handler) as call, call(1) as stream:
            assert [x async for x in stream] == [1]


async def test_a_call_that_is_refused_is_a_checkpoint_too(held: Held) -> None:
    async with opening(held, max_batch_size=1, max_queued_requests=1) as (_, call, tasks):
        await launch(tasks, call(1))
        await line_up(tasks, call(2))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call(3)
        assert scope.cancelled_caught
        held.gate.set()
