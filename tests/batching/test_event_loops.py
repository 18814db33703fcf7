"""A batcher belongs to the event loop that opened it, and not to its thread.

Trio's guest mode runs two loops by turns in one thread; `nested` has one run inside the other.
"""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

import shoal
from shoal.loops import event_loop
from shoal.testing import settle

seen: list[Any] = []


@shoal.batch(max_batch_size=4)
async def double(items: list[int]) -> list[int]:
    seen.extend(items)
    return [2 * item for item in items]


@shoal.batch(max_batch_size=4)
async def count(items: list[int]) -> AsyncIterator[list[int]]:
    seen.extend(items)
    yield items
    yield items


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


async def every_kind_of_call(call: Any, counted: Any) -> list[BaseException]:
    """Makes each kind of call, all of which must fail."""

    async def stream() -> None:
        async with counted(1):
            pass

    kinds: list[Callable[[], Awaitable[Any]]] = [
        lambda: call(1),
        lambda: call.options(timeout_s=9)(1),
        lambda: call.map([1, 2]),
        lambda: call.options(timeout_s=9).map([1, 2]),
        stream,
        lambda: anext(counted(1)),
    ]
    errors: list[BaseException] = []
    for kind in kinds:
        try:
            await kind()
        except Exception as error:
            errors.append(error)
    assert len(errors) == len(kinds)
    return errors


def check_not_open(errors: list[BaseException], home: str, here: str) -> None:
    for error in errors:
        assert type(error) is shoal.errors.NotOpen, error
        assert home in str(error).split("called from")[0]
        assert here in str(error).split("called from")[1]
        assert error.__context__ is None or error.__suppress_context__
    assert seen == []


async def until(event: threading.Event) -> None:
    sleep = trio.sleep if trio.lowlevel.in_trio_task() else asyncio.sleep
    while not event.is_set():
        await sleep(0.001)  # no event is of both loops


def run_as_guest(host: Callable[[], Awaitable[Any]], guest: Callable[[], Awaitable[Any]]) -> None:
    """Runs both in this thread, by turns, until both have ended."""

    async def both() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=ended.set_result,
        )
        await host()
        (await ended).unwrap()

    asyncio.run(both())


@pytest.mark.parametrize("has_own", [False, True])
def test_the_options_of_the_loop_in_which_a_call_is_awaited_apply(has_own: bool) -> None:
    is_open, has_called = threading.Event(), threading.Event()

    @shoal.batch
    async def left(numbers: list[int]) -> list[float | None]:
        return [request.deadline for request in shoal.current_batch().requests]

    async def host() -> None:
        async with shoal.open_batchers(left):
            assert await left(1) is None
            is_open.set()
            await until(has_called)

    async def guest() -> None:
        await until(is_open)
        try:
            left.configure(request_timeout_s=60)
            async with shoal.open_batchers():
                call = left.options(priority=1) if has_own else left
                assert await call(1) is not None
        finally:
            has_called.set()

    run_as_guest(host, guest)


@pytest.mark.parametrize(
    "options", [{"max_queued_requests": 0, "max_batch_size": 1}, {"dedupe": True}]
)
def test_a_call_is_made_in_its_loop_if_the_batcher_of_the_other_can_not_take_it(options):
    """Not if its queue is full, and not if it shares results."""
    is_running, has_called = threading.Event(), threading.Event()

    @shoal.batch(**options)  # type: ignore[call-overload, untyped-decorator]
    async def echo(numbers: list[int]) -> list[int]:
        seen.extend(numbers)
        if numbers == [1]:
            is_running.set()
            await until(has_called)
        return numbers

    async def host() -> None:
        async with shoal.open_batchers(echo):
            assert await echo(1) == 1

    async def guest() -> None:
        await until(is_running)
        try:
            async with shoal.open_batchers():
                assert await echo(2) == 2
        finally:
            has_called.set()

    run_as_guest(host, guest)
    assert seen == [1, 2]


@pytest.mark.parametrize("opener", ["host", "guest"])
@pytest.mark.parametrize("kind", ["decorated", "batcher"])
def test_two_loops_by_turns_in_one_thread_do_not_see_each_others_batchers(opener, kind):
    is_open, has_called = threading.Event(), threading.Event()
    calls: dict[str, Any] = {}

    async def opens() -> None:
        async with contextlib.AsyncExitStack() as stack:
            if kind == "decorated":
                await stack.enter_async_context(shoal.open_batchers(double, count))
                calls["both"] = double, count
            else:
                unary = shoal.Batcher(lambda xs: (seen.extend(xs), xs)[1])
                stream = shoal.Batcher(count._opening.handler.function)
                calls["both"] = (
                    await stack.enter_async_context(unary),
                    await stack.enter_async_context(stream),
                )
            is_open.set()
            await until(has_called)
            assert await calls["both"][0](1) in (1, 2)

    errors: list[BaseException] = []

    async def calls_it() -> None:
        await until(is_open)
        try:
            errors.extend(await every_kind_of_call(*calls["both"]))
            check_not_open(errors, *homes)
        finally:
            has_called.set()

    if opener == "host":
        homes = ("asyncio's loop", "trio's run")
        run_as_guest(opens, calls_it)
    else:
        homes = ("trio's run", "asyncio's loop")
        run_as_guest(calls_it, opens)


@pytest.mark.parametrize("by_name", [True, False])
def test_two_loops_by_turns_in_one_thread_may_both_open_a_function(by_name: bool) -> None:
    open_in: list[str] = []

    async def serve(sleep: Callable[[float], Awaitable[None]], mine: int) -> None:
        names = (double, count) if by_name else ()
        async with shoal.open_batchers(*names):
            if not by_name:
                assert await double(mine) == 2 * mine
                assert double.batcher.statistics().finished == 1
            open_in.append("one")
            while len(open_in) < 2:
                await sleep(0.001)
            for _ in range(20):
                assert await double(mine) == 2 * mine
                assert await double.map([mine, mine]) == [2 * mine, 2 * mine]
                async with count(mine) as stream:
                    assert [item async for item in stream] == [mine, mine]
            assert double.batcher.statistics().finished == 60 + (not by_name)
            open_in.append("one")
            while len(open_in) < 4:
                await sleep(0.001)
        with pytest.raises(shoal.errors.NotOpen):
            await double(1)

    run_as_guest(lambda: serve(asyncio.sleep, 3), lambda: serve(trio.sleep, 5))
    assert double._here == {}
    assert double._opening.table == {}


@pytest.mark.parametrize("opener", ["host", "guest"])
@pytest.mark.parametrize("overload", ["reject", "shed_oldest", "wait"])
def test_nobody_suffers_for_a_call_of_another_loop_that_finds_the_queue_full(opener, overload):
    is_full, has_called = threading.Event(), threading.Event()
    results: list[int] = []

    async def held(items: list[int]) -> list[int]:
        await until(has_called)
        return await double._opening.handler.function(items)

    batcher = shoal.Batcher(held, max_batch_size=1, max_queued_requests=1, overload=overload)

    async def call(item: int) -> None:
        results.append(await batcher.call(item))

    async def opens() -> None:
        async with batcher, anyio.create_task_group() as tasks:
            tasks.start_soon(call, 1)
            while not batcher.statistics().running:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(call, 2)
            while not batcher.statistics().queued:
                await anyio.lowlevel.checkpoint()
            is_full.set()
            await until(has_called)
        counts = batcher.statistics()
        assert (counts.shed, counts.rejected, counts.parked) == (0, 0, 0)

    async def calls_it() -> None:
        await until(is_full)
        try:
            for call in (batcher.call, batcher.call.options(timeout_s=9)):
                with pytest.raises(shoal.errors.NotOpen):
                    await call(3)
        finally:
            has_called.set()

    run_as_guest(*((opens, calls_it) if opener == "host" else (calls_it, opens)))
    assert sorted(results) == [2, 4]
    assert sorted(seen) == [1, 2]


def nested(function: Callable[[], Awaitable[None]]) -> None:
    """Runs an event loop inside the one that runs now."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    tasks = asyncio.current_task(outer) if outer is not None else None
    try:
        with asyncio.Runner() as runner:
            runner.run(function())  # type: ignore[arg-type]
    finally:
        asyncio._set_running_loop(outer)
    assert outer is None or asyncio.current_task(outer) is tasks


@pytest.mark.parametrize("outer", ["asyncio", "trio"])
def test_a_loop_inside_another_does_not_see_its_batchers(outer: str) -> None:
    async def inner() -> None:
        check_not_open(await every_kind_of_call(double, count), outer, "asyncio's loop")

    async def main() -> None:
        async with shoal.open_batchers(double, count):
            nested(inner)
            assert await double(2) == 4

    anyio.run(main, backend=outer)


def test_a_run_of_trio_inside_a_task_of_asyncio_is_told_so_by_what_it_waits_for() -> None:
    async def inner() -> None:
        kinds: list[Callable[[], Awaitable[Any]]] = [
            lambda: double(1),
            lambda: double.map([1, 2]),
            lambda: anext(count(1)),
        ]
        for kind in kinds:
            with pytest.raises(shoal.errors.NotOpen, match="asyncio's loop"):
                await kind()
        async with count(1) as stream:
            with pytest.raises(shoal.errors.NotOpen, match="asyncio's loop"):
                await anext(stream)

    async def main() -> None:
        async with shoal.open_batchers(double, count):
            trio.run(inner)
            assert await double(2) == 4
        assert seen == [2]

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_in_another_thread_is_named_too(backend: str) -> None:
    async def main() -> None:
        batcher = shoal.Batcher(double._opening.handler.function)
        counted = shoal.Batcher(count._opening.handler.function)
        async with batcher as call, counted as stream, shoal.open_batchers(double, count):
            for calls in ((call, stream), (double, count)):
                errors = await anyio.to_thread.run_sync(
                    lambda calls=calls: anyio.run(every_kind_of_call, *calls, backend=backend)
                )
                check_not_open(errors, "'MainThread'", backend)
            with pytest.raises(shoal.errors.NotOpen, match=r"(?s)'MainThread'.*another"):
                await anyio.to_thread.run_sync(configure_in_thread, batcher)

    anyio.run(main, backend=backend)


def configure_in_thread(batcher: Any) -> None:
    try:
        batcher.configure(max_batch_size=3)
    except shoal.errors.NotOpen as error:
        raise shoal.errors.NotOpen(f"{error} another") from None


def test_a_coroutine_that_is_taken_to_another_loop_fails_there() -> None:
    async def main() -> None:
        async with shoal.open_batchers(double):
            call = double(1)
            errors: list[BaseException] = []

            def elsewhere() -> None:
                try:
                    asyncio.run(call)  # type: ignore[arg-type]
                except Exception as error:
                    errors.append(error)

            await anyio.to_thread.run_sync(elsewhere)
            check_not_open(errors, "'MainThread'", "asyncio's loop")

    asyncio.run(main())


@pytest.mark.parametrize(("backend", "other"), [("asyncio", "trio"), ("trio", "asyncio")])
def test_an_item_that_is_there_is_not_read_in_a_loop_of_another_kind(backend, other):
    async def main() -> None:
        async with shoal.open_batchers(count), count(1) as stream:
            await settle()

            async def read() -> None:
                with pytest.raises(shoal.errors.NotOpen, match="'MainThread'"):
                    await anext(stream)

            await anyio.to_thread.run_sync(lambda: anyio.run(read, backend=other))
            assert [item async for item in stream] == [1, 1]

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_batcher_that_was_closed_says_so_in_every_loop(backend: str) -> None:
    batcher = shoal.Batcher(double._opening.handler.function)

    async def opens() -> None:
        async with batcher:
            pass

    async def calls() -> None:
        with pytest.raises(shoal.errors.BatcherClosed):
            await batcher.call(1)
        with pytest.raises(shoal.errors.BatcherClosed):
            await batcher.call.map([1])
        batcher.configure(max_batch_size=7)
        assert batcher.options.max_batch_size == 7

    anyio.run(opens, backend=backend)
    for other in ("asyncio", "trio"):
        anyio.run(calls, backend=other)


@pytest.mark.real_time
@pytest.mark.parametrize(("loop", "other"), [("trio", "asyncio"), ("asyncio", "trio")])
def test_a_program_loads_no_event_loop_but_its_own(loop, other, tmp_path):
    """What anyio alone loads is left out: on CPython 3.11 typing_extensions loads asyncio."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n\nimport anyio\n\nbefore = set(sys.modules)\nimport shoal\n\n\n"
        "@shoal.batch\ndef double(xs: list[int]) -> list[int]:\n"
        "    return [2 * x for x in xs]\n\n\n"
        "async def main():\n    async with shoal.open_batchers(double):\n"
        "        assert await double(1) == 2\n\n\n"
        f"anyio.run(main, backend={loop!r})\nprint(*(set(sys.modules) - before))\n"
    )
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "shoal" in loaded
    assert other not in loaded


@pytest.mark.parametrize("comes", ["before trio", "after trio"])
def test_trio_is_told_of_each_function_that_holds_ctrl_c(comes, monkeypatch):
    monkeypatch.setattr(event_loop, "_mark", None)
    monkeypatch.setattr(event_loop, "_to_mark", [])
    if comes == "after trio":
        event_loop.mark_what_holds_ctrl_c(trio.lowlevel.enable_ki_protection)

    def holding():
        return trio.lowlevel.currently_ki_protected()

    holding.__code__ = holding.__code__.replace()  # what trio marks, and both cases would share
    event_loop.holds_ctrl_c(holding)
    if comes == "before trio":
        event_loop.mark_what_holds_ctrl_c(trio.lowlevel.enable_ki_protection)

    async def main():
        assert not trio.lowlevel.currently_ki_protected()
        return holding()

    assert trio.run(main)
