"""`map`, iterated: data sets of any size, in bounded memory."""

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
import sniffio
import trio

import shoal
from batching.scenes import Held, Recorder, opening, running, settle


class Source:
    """Counts from 0, and notes how many items were taken."""

    def __init__(self, most: float = float("inf")) -> None:
        self.taken = 0
        self.most = most

    def __iter__(self) -> Iterator[int]:
        while self.taken < self.most:
            self.taken += 1
            yield self.taken - 1

    async def in_turns(self) -> AsyncGenerator[int]:
        for item in self:
            await anyio.lowlevel.checkpoint()
            yield item


def double(item: int) -> Any:
    return ValueError(item) if item == 13 else 2 * item


async def collect(results: AsyncIterator[Any], given: list[Any]) -> None:
    async for result in results:
        given.append(result)  # noqa: PERF401 (an error may end it)


async def some(results: AsyncIterator[Any], count: int) -> list[Any]:
    return [await anext(results) for _ in range(count)]


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 4, 10, 50])
@pytest.mark.parametrize("is_async", [False, True])
async def test_results_come_in_the_order_of_the_items(window, count, is_async):
    async with shoal.Batcher(Recorder(lambda item: 2 * item), max_batch_size=4) as call:
        source = Source(count)
        items = source.in_turns() if is_async else source
        results = [result async for result in call.map(items, window=window)]
        assert results == [2 * item for item in range(count)]
        assert await call.map(Source(count), window=window) == results


@pytest.mark.parametrize("window", [1, 8, 20])
@pytest.mark.parametrize("is_async", [False, True])
async def test_no_more_items_are_under_way_than_the_window_has_room_for(window, is_async):
    source = Source()
    async with shoal.Batcher(Recorder(), max_batch_size=4) as call:
        read_ahead = 5 if is_async else 0  # a batch, and what the source holds itself
        results = call.map(source.in_turns() if is_async else source, window=window)
        for given in range(1, 50):
            assert await anext(results) == given - 1
            await settle()
            assert source.taken <= given + window + read_ahead
        await results.aclose()


async def test_full_batches_wait_while_one_runs(held: Held) -> None:
    async with opening(held, max_batch_size=4) as (batcher, call, tasks):
        results = call.map(itertools.count())
        tasks.start_soon(anext, results)
        await settle()
        assert held.batches == [[0, 1, 2, 3]]
        assert batcher.statistics().queued == 8
        await held.release()
        await results.aclose()


@pytest.mark.parametrize("way", ["break", "block", "cancel", "close"])
async def test_leaving_drops_what_is_under_way(way: str, held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=2, max_concurrent_batches=2)
    source = Source()
    async with batcher as call:
        first = Recorder()
        async with shoal.Batcher(first) as quick:
            assert await anext(quick.map(source)) == 0  # the iterator is dropped here
        await settle()

        async def work() -> None:
            match way:
                case "block":
                    async with call.map(source) as results:
                        await anext(results)
                case "close":
                    results = call.map(source)
                    with suppress(anyio.WouldBlock):
                        await anext(results)
                    await results.aclose()
                case _:
                    async for _ in call.map(source):
                        break

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await settle()
            taken = source.taken
            assert batcher.statistics().running == 4
            if way == "cancel":
                tasks.cancel_scope.cancel()
            held.gate.set()
        await settle()
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running) == (0, 0)
        await settle()
        assert source.taken <= taken + 4


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_map_may_be_dropped(in_thread: bool) -> None:
    async def handler(items: list[int]) -> list[int]:
        if items[0]:
            await anyio.sleep_forever()
        return items

    batcher = shoal.Batcher(handler, max_batch_size=2)
    async with batcher as call:
        kept = [call.map(itertools.count())]
        assert await anext(kept[0]) == 0
        await settle()
        assert batcher.statistics().running == 2
        if in_thread:
            await anyio.to_thread.run_sync(kept.clear)
        else:
            kept.clear()
        await settle()
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running) == (0, 0)


async def test_a_cancelled_map_is_over(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=2)
    async with batcher as call:
        results = call.map(itertools.count())
        with anyio.move_on_after(1):
            await anext(results)
        await settle()
        assert batcher.statistics().cancelled == 6
        with pytest.raises(StopAsyncIteration):
            await anext(results)
        held.gate.set()


async def test_an_error_is_raised_in_its_place_and_drops_the_rest() -> None:
    batcher = shoal.Batcher(Recorder(double), max_batch_size=4)
    async with batcher as call:
        results = call.map(itertools.count())
        assert await some(results, 13) == [2 * item for item in range(13)]
        with pytest.raises(ValueError, match="13"):
            await anext(results)
        await settle()
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running) == (0, 0)
        with pytest.raises(StopAsyncIteration):
            await anext(results)


async def test_errors_are_results_where_that_is_asked_for() -> None:
    async with shoal.Batcher(Recorder(double), max_batch_size=4) as call:
        results = [one async for one in call.map(range(20), return_exceptions=True)]
        assert [one for one in results if not isinstance(one, int)] == [results[13]]
        assert isinstance(results[13], ValueError)
        numbered = [
            one async for one in call.map(range(20), return_exceptions=True, as_completed=True)
        ]
        assert [number for number, one in numbered if isinstance(one, ValueError)] == [13]


@pytest.mark.parametrize("kind", [LookupError, GeneratorExit, SystemExit])
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_the_iterable_raises_comes_after_the_results_before(kind, is_async):
    def source() -> Iterator[int]:
        yield from range(10)
        raise kind("spoilt")

    async def in_turns() -> AsyncGenerator[int]:
        for item in range(10):
            yield item
        raise kind("spoilt")

    async with shoal.Batcher(Recorder(), max_batch_size=4) as call:
        results = call.map(in_turns() if is_async else source(), window=4)
        given: list[int] = []
        with pytest.raises(kind, match="spoilt"):
            await collect(results, given)
        expected = range(10) if is_async or kind is LookupError else range(8)
        assert given == list(expected)
        with pytest.raises(kind, match="spoilt"):
            await call.map(source())


async def test_as_completed_gives_each_result_with_the_number_of_its_item() -> None:
    async def handler(items: list[str]) -> list[str]:
        await anyio.sleep(3 if items[0] == "slow" else 1)
        return [item.upper() for item in items]

    options: Any = {"bucket_by": str, "max_batch_size": 2, "max_concurrent_batches": 2}
    async with shoal.Batcher(handler, **options) as call:
        items = ["slow", "quick", "quick", "quick"]
        given = [one async for one in call.map(items, as_completed=True)]
        assert given[-1] == (0, "SLOW")
        assert sorted(given) == [(0, "SLOW"), *((n, "QUICK") for n in (1, 2, 3))]
        in_order = [one async for one in call.map(items)]
        assert in_order == ["SLOW", "QUICK", "QUICK", "QUICK"]
        assert sorted(await call.map(items, as_completed=True)) == sorted(given)


async def test_results_are_given_while_an_async_source_waits() -> None:
    async def source() -> AsyncGenerator[int]:
        for item in range(3):
            yield item
            await anyio.sleep(100)

    async with shoal.Batcher(Recorder(), max_batch_size=64) as call:
        began_at = anyio.current_time()
        times = [
            (result, round(anyio.current_time() - began_at)) async for result in call.map(source())
        ]
        assert times == [(0, 0), (1, 100), (2, 200)]


@pytest.mark.parametrize("error", [None, LookupError("while it was closed")])
async def test_an_async_generator_is_closed_at_the_end_and_may_fail_then(error: Any) -> None:
    closed: list[int] = []

    async def source() -> AsyncGenerator[int]:
        try:
            for item in itertools.count():
                yield item
        finally:
            closed.append(item)
            if error is not None:
                raise error

    async with shoal.Batcher(Recorder(), max_batch_size=4) as call:
        async with call.map(source()) as results:
            assert await anext(results) == 0
        assert len(closed) == 1
        assert await call(1) == 1


def living_tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


async def test_a_map_that_is_cancelled_while_it_opens_leaves_no_task() -> None:
    async with shoal.Batcher(Recorder(), max_batch_size=4) as call:
        await settle()
        before = living_tasks()
        for passes in range(4):
            async with anyio.create_task_group() as tasks:
                results = call.map(itertools.count())
                tasks.start_soon(anext, results)
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            with pytest.raises(StopAsyncIteration):
                await anext(results)
            await settle()
            assert living_tasks() == before


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_map_whose_tasks_are_cancelled_from_outside_fails(held: Held) -> None:
    async with shoal.Batcher(held, max_batch_size=2) as call:
        others = asyncio.all_tasks()
        waiting = asyncio.ensure_future(anext(call.map(itertools.count())))
        await settle()
        for task in asyncio.all_tasks() - others - {waiting}:
            task.cancel()
        with pytest.raises(shoal.errors.BatcherClosed, match="cancelled"):
            await waiting
        held.gate.set()


async def test_one_task_at_a_time_iterates(held: Held) -> None:
    async with shoal.Batcher(held, max_batch_size=2) as call, anyio.create_task_group() as tasks:
        results = call.map(range(4))
        tasks.start_soon(anext, results)
        await settle()
        with pytest.raises(RuntimeError, match="another task waits"):
            await anext(results)
        await held.release()
        assert await some(results, 3) == [1, 2, 3]


async def test_a_source_may_call_and_wait_for_the_batcher_itself() -> None:
    async with shoal.Batcher(Recorder(lambda item: item + 1), max_batch_size=4) as call:

        async def source() -> AsyncGenerator[int]:
            for item in range(6):
                yield await call(item)

        assert [one async for one in call.map(source())] == [2, 3, 4, 5, 6, 7]


async def test_a_list_that_queue_and_slots_can_not_hold_is_called_in_turns(recorder):
    async with shoal.Batcher(recorder, max_batch_size=50, max_queued_requests=100) as call:
        assert await call.map(list(range(10_000))) == list(range(10_000))
    assert {len(batch) for batch in recorder.batches} <= {50, 100}


@pytest.mark.parametrize(
    ("overload", "bound"),
    [("reject", 0), ("wait", 0), ("reject", 1), ("shed_oldest", 1), ("shed_lowest", 5)],
)
async def test_a_map_is_not_refused_for_its_own_items(overload: Any, bound: int) -> None:
    options: Any = {"max_batch_size": 3, "max_queued_requests": bound, "overload": overload}
    batcher = shoal.Batcher(Recorder(), **options)
    async with batcher as call:
        assert [one async for one in call.map(range(40))] == list(range(40))
        assert [one async for one in call.map(range(40), window=30)] == list(range(40))
    assert (batcher.statistics().rejected, batcher.statistics().shed) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"max_queued_requests": 3, "batch_size_fn": lambda _: 1},
        {"default_queue_policy": shoal.QueuePolicy(max_queued_requests=3)},
        {"queue_policies": {2: shoal.QueuePolicy(max_queued_requests=3)}, "priority_levels": 2},
    ],
)
async def test_a_list_that_an_idle_batcher_can_not_hold_is_called_in_turns(options: Any) -> None:
    async with shoal.Batcher(Recorder(), max_batch_size=4, **options) as call:
        call = call.options(priority=options.get("priority_levels"))
        assert await call.map(range(7)) == list(range(7))


async def test_a_map_goes_on_when_the_queue_is_made_smaller_than_what_it_calls_at_once() -> None:
    batcher = shoal.Batcher(Recorder(), max_batch_size=10)
    async with batcher as call:
        results = call.map(range(50))
        assert await anext(results) == 0
        batcher.configure(max_batch_size=1, max_queued_requests=2)
        with anyio.fail_after(30):
            assert [result async for result in results] == list(range(1, 50))


async def test_an_item_that_others_leave_no_room_for_is_called_again_for_a_while() -> None:
    held = Held()
    async with opening(held, max_batch_size=1, max_queued_requests=1) as (_, call, tasks):
        for item in ("runs", "queued"):
            tasks.start_soon(call, item)
            await settle()
        results: list[Any] = []

        async def work() -> None:
            results.extend([one async for one in call.map(range(5))])

        tasks.start_soon(work)
        await anyio.sleep(50)
        assert results == []
        held.gate.set()
        await anyio.sleep(2)
        assert results == [0, 1, 2, 3, 4]
    held = Held()
    async with opening(held, max_batch_size=1, max_queued_requests=0) as (_, call, tasks):
        tasks.start_soon(call, "runs")
        await settle()
        with pytest.raises(shoal.errors.Overloaded), anyio.fail_after(70):
            await anext(call.map([1]))
        held.gate.set()


async def test_closing_the_batcher_ends_a_map(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=2, graceful_shutdown_timeout_s=1)
    async with running(batcher) as (_, call, tasks):
        results = call.map(itertools.count())

        async def close() -> None:
            await settle()
            await batcher.aclose()

        tasks.start_soon(close)
        with pytest.raises(shoal.errors.BatcherClosed):
            await anext(results)


async def test_calls_have_the_deadline_of_the_scope_in_which_they_were_begun() -> None:
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(items[0])
        return items

    async with shoal.Batcher(handler, max_batch_size=1) as call:
        results = call.map([1, 50], return_exceptions=True)
        with anyio.fail_after(10):
            assert await anext(results) == 1
        await anyio.sleep(20)
        assert isinstance(await anext(results), shoal.errors.DeadlineExceeded)


async def test_items_are_not_kept() -> None:
    class Item:
        alive = 0

        def __init__(self) -> None:
            Item.alive += 1

        def __del__(self) -> None:
            Item.alive -= 1

    async def forget(items: list[Item]) -> list[None]:
        return [None] * len(items)

    async with shoal.Batcher(forget, max_batch_size=16) as call:
        most = 0
        async for _ in call.map((Item() for _ in range(5_000)), window=64):
            most = max(most, Item.alive)
        assert most <= 2 * 64


@pytest.mark.parametrize("is_async", [False, True])
async def test_progress_is_told_to_a_function(is_async: bool) -> None:
    told: list[tuple[int, int | None]] = []
    async with shoal.Batcher(Recorder(), max_batch_size=4) as call:
        items: Any = Source(10).in_turns() if is_async else range(10)
        async for _ in call.map(items, progress=lambda done, total: told.append((done, total))):
            pass
    total = None if is_async else 10
    assert told[-1] == (10, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {each for _, each in told} == {total}


async def test_an_error_of_the_progress_function_ends_the_map() -> None:
    def told(done: int, _: int | None) -> None:
        if done:
            raise LookupError(done)

    batcher = shoal.Batcher(Recorder(), max_batch_size=4)
    async with batcher as call:
        with pytest.raises(LookupError):
            async for _ in call.map(itertools.count(), progress=told):
                pass
        await settle()
        assert batcher.statistics().queued == 0


async def test_progress_is_lines_where_there_is_no_terminal(capsys: Any) -> None:
    async with shoal.Batcher(Recorder(), name="embed", max_batch_size=4) as call:
        await call.map(range(10), progress=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("embed: 10 of 10 items (100%)")


async def test_progress_is_a_bar_at_a_terminal(capsys, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with shoal.Batcher(Recorder(), name="embed", max_batch_size=4) as call:
        await call.map(range(10), progress=True)
    drawn = capsys.readouterr().err.rstrip().split("\r")
    assert len(drawn) > 1
    assert drawn[-1].startswith("embed: 100%")
    assert "10/10" in drawn[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0}, "window"),
        ({"window": 1.5}, "window"),
        ({"as_completed": "yes"}, "as_completed"),
        ({"return_exceptions": None}, "return_exceptions"),
        ({"progress": 3}, "progress must be True, or a function"),
    ],
)
async def test_wrong_options_are_refused(options: Any, said: str) -> None:
    async with shoal.Batcher(Recorder()) as call:
        with pytest.raises((TypeError, ValueError), match=said):
            call.map([1], **options)


async def test_wrong_columns_are_refused() -> None:
    async def add(left: list[int], right: list[int]) -> list[int]:
        return [a + b for a, b in zip(left, right, strict=True)]

    async with shoal.Batcher(add) as call:
        assert [one async for one in call.map(iter([1, 2]), [3, 4])] == [4, 6]
        results = call.map(iter([1, 2]), [3])
        assert await anext(results) == 4
        with pytest.raises(ValueError, match="shorter"):
            await anext(results)
        with pytest.raises(TypeError, match="one async iterable"):
            await call.map(Source(3).in_turns(), [1])
        with pytest.raises(TypeError, match="iterable"):
            await call.map(3)  # type: ignore[call-overload]


async def test_a_map_that_is_forgotten_is_warned_of() -> None:
    async with shoal.Batcher(Recorder()) as call:
        results = [call.map([1])]
        with pytest.warns(RuntimeWarning, match=r"map\(\) were never awaited"):
            results.clear()


async def test_a_thread_works_through_a_data_set() -> None:
    readers = set[int]()

    def source() -> Iterator[int]:
        for item in range(100):
            readers.add(threading.get_ident())
            yield item

    batcher = shoal.Batcher(Recorder(double), max_batch_size=4)

    def work() -> list[Any]:
        results = batcher.call.map_from_thread(source(), window=8, return_exceptions=True)
        got = list(results)
        assert readers == {threading.get_ident()}
        for number, result in enumerate(batcher.call.map_from_thread(itertools.count(20))):
            assert result == 2 * number + 40
            if number == 30:
                break
        with pytest.raises(ValueError, match="13"):
            list(batcher.call.map_from_thread(itertools.count()))
        return got

    async with batcher:
        got = await anyio.to_thread.run_sync(work)
        await settle()
        statistics = batcher.statistics()
    assert [one for one in got if isinstance(one, int)] == [2 * n for n in range(100) if n != 13]
    assert (statistics.queued, statistics.running) == (0, 0)


def test_blocking_works_through_a_data_set() -> None:
    told: list[tuple[int, int | None]] = []
    batcher = shoal.Batcher(Recorder(lambda item: 2 * item), max_batch_size=4)
    with shoal.blocking(batcher) as call:
        results = call.map(itertools.count(), window=8)
        assert list(itertools.islice(results, 20)) == list(range(0, 40, 2))
        results.close()
        assert call.map(iter(range(20))) == list(range(0, 40, 2))
        given = list(
            call.map(
                range(20), window=8, as_completed=True, progress=lambda *args: told.append(args)
            )
        )
        assert sorted(given) == [(n, 2 * n) for n in range(20)]
        assert told[-1] == (20, 20)

        def spoilt() -> Iterator[int]:
            yield 1
            raise LookupError("spoilt")

        results = call.map(spoilt(), window=8)
        assert next(results) == 2
        with pytest.raises(LookupError, match="spoilt"):
            next(results)
        assert call.statistics().queued == 0
