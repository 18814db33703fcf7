"""What is kept of the last batches, and of the last failures."""

import gc
import weakref

import anyio
import pytest

import shoal
from handlers import echo
from shoal.observe.failures import MOST_KEPT, FailureLog
from shoal.observe.history import MOST_PLACES, MOST_ROWS, BatchHistory
from shoal.testing import settle


@pytest.fixture
def history() -> BatchHistory:
    return BatchHistory()


async def test_rows_are_numbered_through_and_bounded(history):
    batchers = [shoal.Batcher(echo, max_batch_size=1, name=name) for name in ("one", "two")]
    for batcher in batchers:
        batcher.observers.add(history)
    async with batchers[0] as one, batchers[1] as two:
        await one(1)
        await two(1)
        await one.map(range(MOST_ROWS + 10))
    assert history.number == MOST_ROWS + 12
    rows = history.by_batcher["one"].since(0)
    assert len(rows) == MOST_ROWS
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert [row[0] for row in history.by_batcher["two"].since(0)] == [2]
    assert [row[0] for row in history.by_batcher["one"].since(MOST_ROWS + 11)] == [MOST_ROWS + 12]
    history.keep_only(["two"])
    assert list(history.by_batcher) == ["two"]


async def test_requests_in_an_open_batch_have_places(history):
    async def write(batch: shoal.OpenBatch[int, int]) -> None:
        while await batch.join():
            while batch.active:
                await anyio.sleep(1)
                now = anyio.current_time() - began
                for request in batch.active:
                    if request.item <= now:
                        request.finish(request.item)
                batch.join_nowait()

    batcher = shoal.Batcher(write, fill="continuous", max_batch_size=3, name="write")
    batcher.observers.add(history)
    began = anyio.current_time()
    async with batcher as call, anyio.create_task_group() as tasks:
        named = call.options(metadata={"request_id": "r-2"})
        tasks.start_soon(call, 2)
        await settle()
        tasks.start_soon(named, 4)
        await anyio.sleep(2.5)
        tasks.start_soon(call, 5)
        await anyio.sleep(1)
        lane = history.by_batcher["write"]
        assert [(place, name) for _, place, _, _, name in lane.now(is_open=True)] == [
            (1, "r-2"),
            (0, ""),  # the place of the one that has left
        ]
    rows = [
        (place, round(joined - began), round(left - began), outcome, name)
        for _, _, place, joined, left, _, outcome, name in lane.since(0)
    ]
    assert rows == [
        (0, 0, 2, "finished", ""),
        (1, 1, 4, "finished", "r-2"),
        (0, 3, 5, "finished", ""),
    ]
    assert lane.now(is_open=True) == []
    assert len(lane.take_latencies()) == 3


async def test_who_comes_late_sees_the_requests_that_are_in_an_open_batch_already(history):
    hold = anyio.Event()

    async def write(batch: shoal.OpenBatch[int, int]) -> None:
        while await batch.join():
            await hold.wait()
            while batch.active:
                batch.active[0].finish(1)
                batch.join_nowait()

    places = MOST_PLACES + 2
    batcher = shoal.Batcher(write, fill="continuous", max_batch_size=places, name="write")
    async with batcher as call, anyio.create_task_group() as tasks:
        for item in range(places):
            tasks.start_soon(call, item)
        await settle()
        batcher.observers.add(history)
        hold.set()
    rows = history.by_batcher["write"].since(0)
    # One has left when the others are found, and the last of them has a place beyond those shown.
    assert sorted(row[2] for row in rows) == list(range(MOST_PLACES))
    history.forget_running()
    assert history.by_batcher["write"].now(is_open=True) == []


async def test_failures_of_an_open_batch_are_kept_together_and_bounded():
    class Ugly(Exception):
        pass

    Ugly.__name__ = "<script>" + "y" * 100

    async def write(batch: shoal.OpenBatch[int, int]) -> None:
        while await batch.join():
            for request in batch.active:
                request.fail(Ugly("secret") if request.item % 3 else KeyError("secret"))

    class Rude(dict):
        def get(self, key, default=None):
            raise RuntimeError

    failures = FailureLog()
    batcher = shoal.Batcher(write, fill="continuous", max_batch_size=1, name="write")
    batcher.observers.add(failures, only_failures=True)
    async with batcher as call:
        for item in (1, 2, 3):
            with pytest.raises((Ugly, KeyError)):
                await call.options(metadata=Rude())(item)
        first, second = failures.kept
        assert (first.error, first.count, first.ids) == ("<script>" + "y" * 56, 2, [])
        assert (second.error, second.count) == ("KeyError", 1)
        for item in (4, 5):
            with pytest.raises((Ugly, KeyError)):
                await call.options(metadata={"request_id": f"r-{item}"})(item)
        second, first = failures.kept  # equal ones are together, and the last one is last
        assert (first.count, first.ids, second.count) == (4, ["r-4", "r-5"], 1)
        for item in range(3 * MOST_KEPT):
            Ugly.__name__ = f"Ugly{item}"
            with pytest.raises((Ugly, KeyError)):
                await call(item)
        last = failures.kept[-1]
        count = last.count
    assert len(failures.kept) == MOST_KEPT
    # The end of the batch tells nothing new.
    assert (failures.kept[-1], failures.kept[-1].count) == (last, count)


async def test_what_is_kept_keeps_no_item_and_no_error(history):
    class Item:
        pass

    async def fail(items: list[Item]) -> list[Item]:
        raise ValueError(items)

    failures = FailureLog()
    batcher = shoal.Batcher(fail, name="fail")
    batcher.observers.add(history)
    batcher.observers.add(failures, only_failures=True)
    item = Item()
    gone = weakref.ref(item)
    async with batcher as call:
        with pytest.raises(ValueError):
            await call(item)
        del item
    gc.collect()
    assert len(failures.kept) == 1
    assert gone() is None
