"""What observers are told of batches."""

import logging
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import outcome
from batching.scenes import Held, Recorder, settle
from shoal import DispatchReason
from shoal.core.events import Observers
from shoal.statistics import BatchObserver, BatchRecord


class Told(BatchObserver):
    """Notes all that it is told; it keeps items, not requests."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int, list[Any]]] = []
        self.joined: list[list[Any]] = []
        self.ended: list[tuple[Any, str]] = []
        self.records: list[BatchRecord] = []
        self.of_records: list[list[Any]] = []

    def batch_began(self, batcher, batch, now):
        self.began.append((batcher, batch.id, [request.item for request in batch.requests]))

    def requests_joined(self, batcher, batch, requests, now):
        self.joined.append([request.item for request in requests])

    def request_ended(self, batcher, batch, request, now):
        self.ended.append((request.item, request.state.value))

    def batch_ended(self, record, requests):
        self.records.append(record)
        self.of_records.append([request.item for request in requests])


async def double(items: list[int]) -> list[Any]:
    await anyio.sleep(2)
    return [KeyError("three") if item == 3 else item * 2 for item in items]


async def test_a_batch_is_recorded_when_it_ends():
    batcher = shoal.Batcher(double, max_batch_size=8, batch_wait_timeout_s=1, name="double")
    batcher.observers.add(told := Told())
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 1)
        tasks.start_soon(outcome, call(3))
        with anyio.CancelScope() as left:
            left.deadline = 2
            await call(5)
    (record,) = told.records
    ((name, number, items),) = told.began
    assert (name, number, sorted(items)) == ("double", record.id, [1, 3, 5])
    assert sorted(told.of_records[0]) == [1, 3, 5]
    assert (record.batcher, record.reason) == ("double", DispatchReason.TIMER)
    assert not record.is_open
    assert (record.size, record.limit, record.load) == (3, 8, 3)
    assert (record.finished, record.failed, record.cancelled) == (1, 1, 1)
    assert isinstance(record.error, KeyError)
    assert record.arrived_at == pytest.approx(0)
    assert record.wait_s == pytest.approx(1)
    assert record.run_s == pytest.approx(2)
    assert told.joined == told.ended == []


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_requests_of_an_open_batch_are_told_of_one_by_one(fill):
    async def handle(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await anyio.sleep(1)
            if request.item == 2:
                request.fail(KeyError("two"))
            else:
                request.finish(request.item)

    options = {"batch_wait_timeout_s": 3} if fill == "open" else {}
    batcher = shoal.Batcher(handle, fill=fill, max_batch_size=4, name="open", **options)
    batcher.observers.add(told := Told())
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 1)
        await settle()
        tasks.start_soon(outcome, call(2))
        with anyio.move_on_after(0.5):
            await call(3)
    assert [items for _, _, items in told.began] == [[1]]
    assert sorted(item for items in told.joined for item in items) in ([2], [2, 3])
    assert sorted(told.ended)[:2] == [(1, "finished"), (2, "failed")]
    (record,) = told.records
    assert record.is_open
    assert (record.finished, record.failed) == (1, 1)
    assert isinstance(record.error, KeyError)
    assert record.cancelled == record.size - 2


async def test_a_batch_that_is_interrupted_is_recorded():
    batcher = shoal.Batcher(Held(), handler_timeout_s=1)
    batcher.observers.add(told := Told())
    async with batcher as call:
        with pytest.raises(shoal.errors.HandlerTimeout):
            await call(1)
    (record,) = told.records
    assert (record.finished, record.failed, record.cancelled) == (0, 1, 0)
    assert isinstance(record.error, shoal.errors.HandlerTimeout)


async def test_an_observer_that_raises_is_logged_once_and_harms_nobody(caplog):
    class Raises(BatchObserver):
        calls = 0

        def batch_began(self, batcher, batch, now):
            self.calls += 1
            raise ZeroDivisionError

    batcher = shoal.Batcher(double, batch_wait_timeout_s=0)
    batcher.observers.add(raises := Raises())
    batcher.observers.add(told := Told())
    with caplog.at_level(logging.ERROR, "shoal"):
        async with batcher as call:
            assert await call(1) == 2
            assert await call(2) == 4
    assert raises.calls == 1
    assert len(told.records) == 2
    (logged,) = caplog.records
    assert "is not called again" in logged.getMessage()


async def test_batchers_can_share_their_observers_and_one_that_is_removed_is_told_nothing():
    observers = Observers()
    observers.add(told := Told())
    first = shoal.Batcher(double, name="first", observers=observers)
    second = shoal.Batcher(double, name="second", observers=observers)
    async with first as call, second as other:
        await call(1)
        await other(1)
        observers.remove(told)
        observers.remove(told)
        await call(1)
    assert [record.batcher for record in told.records] == ["first", "second"]


async def test_requests_that_no_batch_has_had_are_told_of():
    left = []

    class Left(BatchObserver):
        def request_left(self, batcher, request, why, now):
            left.append((batcher, request.item, why, now))

    batcher = shoal.Batcher(
        double, name="double", max_batch_size=1, max_queued_requests=2, overload="shed_oldest"
    )
    batcher.observers.add(Left())
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 0)
        await settle()
        with anyio.move_on_after(0.25):
            await call(1)
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await call.options(timeout_s=0.25)(2)
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await call.options(timeout_s=0)(3)
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await call.options(timeout_s=0).map([4, 5])
        tasks.start_soon(outcome, call(6))
        await settle()
        tasks.start_soon(call, 7)
        await settle()
        tasks.start_soon(call, 8)
        await settle()
        batcher.configure(overload="reject")
        with pytest.raises(shoal.errors.Overloaded):
            await call(9)
        with pytest.raises(shoal.errors.Overloaded):
            await call.map([10, 11])
    assert left == [
        ("double", 1, "cancelled", 0.25),
        ("double", 2, "expired", 0.5),
        ("double", 3, "expired", 0.5),
        ("double", 4, "expired", 0.5),
        ("double", 5, "expired", 0.5),
        ("double", 6, "shed", 0.5),
        ("double", 9, "rejected", 0.5),
        ("double", 10, "rejected", 0.5),
        ("double", 11, "rejected", 0.5),
    ]


async def test_an_observer_of_failures_is_told_of_nothing_else():
    batcher = shoal.Batcher(double, max_batch_size=1, max_concurrent_batches=2)
    batcher.observers.add(told := Told(), only_failures=True)
    async with batcher as call:
        await call(1)
        with pytest.raises(KeyError):
            await call(3)
        batcher.observers.remove(told)
        with pytest.raises(KeyError):
            await call(3)
    assert not told.began
    assert [record.failed for record in told.records] == [1]
    assert told.of_records == [[3]]


async def test_it_is_told_of_the_failed_requests_of_open_batches():
    async def write(batch: shoal.OpenBatch[int, int]) -> None:
        while await batch.join():
            for request in batch.active:
                if request.item == 3:
                    request.fail(KeyError("three"))
                else:
                    request.finish(request.item)

    batcher = shoal.Batcher(write, fill="continuous", max_batch_size=4)
    batcher.observers.add(told := Told(), only_failures=True)
    async with batcher as call:
        await call(1)
        with pytest.raises(KeyError):
            await call(3)
        await call(1)
    assert not told.joined
    assert told.ended == [(3, "failed")]


class Surrounding(BatchObserver):
    """Puts a context manager around each batch that raises when it is entered or left."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.error = error
        self.where = where

    def batch_began(self, batcher, batch, now):
        batch.surroundings = self

    def __enter__(self) -> None:
        if self.where == "enter":
            raise self.error

    def __exit__(self, *_: object) -> None:
        if self.where == "exit":
            raise self.error


@pytest.mark.parametrize("where", ["enter", "exit"])
@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
async def test_what_the_surroundings_of_a_batch_raise_is_no_error_of_a_scope(kind, where):
    error = kind("mine")
    batcher = shoal.Batcher(Recorder(lambda item: item + 1), name="more")
    batcher.observers.add(Surrounding(error, where))
    outcomes: list[Any] = []
    with pytest.raises(BaseExceptionGroup) as raised:  # noqa: PT012
        async with batcher as call:
            outcomes.append(await outcome(call(1)))
            await anyio.sleep(1)
    assert raised.group_contains(kind, match="mine")
    (answer,) = outcomes
    if where == "exit":
        assert answer == 2
    else:
        assert isinstance(answer, shoal.errors.BatcherClosed)
        assert answer.__cause__ is error
