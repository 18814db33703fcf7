"""What is recorded of requests: when, how large and how urgent they are, and never what."""

import json

import anyio
import pytest

import shoal
from batching.scenes import settle
from shoal.http.admin import recordings
from shoal.http.admin.recordings import ArrivalRecorder

SECRET = "the-patient's-name"


def recorder(**options):
    most = {"most_requests": 1000, "most_a_second": 1000}
    return ArrivalRecorder(anyio.current_time(), **{**most, **options})


def requests_in(notes):
    return [note for note in notes if "record" not in note]


async def slow(items):
    await anyio.sleep(1)
    return items


async def test_requests_are_noted_with_their_batch_when_it_ends():
    batcher = shoal.Batcher(slow, max_batch_size=8, batch_wait_timeout_s=0.5, name="slow")
    batcher.observers.add(told := recorder())
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, SECRET)
        await anyio.sleep(0.25)
        tasks.start_soon(call, SECRET)
        await settle()
        assert told.take() == []
    batch, *requests = told.take()
    figures = {"at": 0.5, "run_s": 1, "size": 2, "load": 2, "reason": "timer"}
    assert batch == {"record": "batch", "batcher": "slow", "batch": 1, **figures}
    assert requests == [
        {"at": 0, "batcher": "slow", "batch": 1, "took_s": 1.5},
        {"at": 0.25, "batcher": "slow", "batch": 1, "took_s": 1.25},
    ]
    assert told.take() == []
    assert (told.requests, told.lost) == (2, 0)


async def test_costs_priorities_deadlines_and_hashes_of_keys_are_noted():
    batcher = shoal.Batcher(
        slow,
        name="slow",
        max_batch_size=9,
        priority_levels=3,
        batch_size_fn=lambda item: item[1],
        bucket_by=lambda item: item[0],
    )
    batcher.observers.add(told := recorder())
    async with batcher as call, anyio.create_task_group() as tasks:
        urgent = call.options(priority=1, timeout_s=30, queue_timeout_s=20)
        tasks.start_soon(urgent, (SECRET, 2.5))
        tasks.start_soon(urgent, (SECRET, 1))
        tasks.start_soon(call, ("other", 1))
    notes = told.take()
    first, second, third = sorted(requests_in(notes), key=lambda note: note["took_s"])
    if first["cost"] == 1:
        first, second = second, first
    assert (first["cost"], second["cost"]) == (2.5, 1)  # it is no count of requests
    assert (first["priority"], first["timeout_s"], first["queue_timeout_s"]) == (1, 30, 20)
    assert not third.keys() & {"priority", "timeout_s", "queue_timeout_s"}
    assert first["bucket"] == second["bucket"] != third["bucket"]
    assert SECRET not in json.dumps(notes)
    assert "other" not in json.dumps(notes)


async def test_keys_of_any_type_have_equal_hashes_if_they_are_equal():
    class Key:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return isinstance(other, Key) and self.value == other.value

        def __hash__(self):
            return hash(self.value)

        def __repr__(self):
            raise AssertionError

    class Broken(Key):
        def __hash__(self):
            raise ZeroDivisionError

    told = recorder()
    assert told._hashed(Key(1)) == told._hashed(Key(1)) != told._hashed(Key(2))
    assert told._hashed(Broken(1)) == "unknown"


async def test_a_deadline_that_an_option_makes_is_not_noted():
    batcher = shoal.Batcher(slow, name="slow", request_timeout_s=30)
    batcher.observers.add(told := recorder())
    async with batcher as call:
        await call(1)
        await call.options(timeout_s=20)(1)
    first, second = requests_in(told.take())
    assert "timeout_s" not in first
    assert second["timeout_s"] == 20


async def test_failed_requests_are_noted_as_such():
    async def fail(items):
        return [KeyError(SECRET) for _ in items]

    batcher = shoal.Batcher(fail, name="fail")
    batcher.observers.add(told := recorder())
    async with batcher as call:
        with pytest.raises(KeyError):
            await call(SECRET)
    batch, request = told.take()
    assert batch["failed"] == 1
    assert request["outcome"] == "failed"
    assert SECRET not in json.dumps([batch, request])


async def test_requests_of_open_batches_are_noted_one_by_one():
    async def handle(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await anyio.sleep(1)
            request.finish(request.item)

    batcher = shoal.Batcher(handle, fill="continuous", max_batch_size=4, name="open")
    batcher.observers.add(told := recorder())
    async with batcher as call:
        await call(1)
        assert [note["took_s"] for note in told.take()] == [1]
    (batch,) = told.take()
    assert batch["open"] is True


async def test_requests_that_were_there_already_arrive_at_its_beginning():
    batcher = shoal.Batcher(slow, name="slow")
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 1)
        await anyio.sleep(0.5)
        batcher.observers.add(told := recorder())
    (request,) = requests_in(told.take())
    assert (request["at"], request["took_s"]) == (0, 1)


async def test_what_is_too_much_is_left_out_and_counted(monkeypatch):
    batcher = shoal.Batcher(slow, name="slow", max_batch_size=10)
    batcher.observers.add(told := recorder(most_a_second=3, most_requests=5))
    async with batcher as call:
        await call.map(range(10))
        assert (told.requests, told.lost, told.is_full) == (3, 7, False)
        await call.map(range(10))
        assert (told.requests, told.lost, told.is_full) == (5, 15, True)
    assert len(requests_in(told.take())) == 5


async def test_notes_that_nobody_takes_are_bounded(monkeypatch):
    monkeypatch.setattr(recordings, "MOST_HELD", 4)
    batcher = shoal.Batcher(slow, name="slow", max_batch_size=10)
    batcher.observers.add(told := recorder())
    async with batcher as call:
        await call.map(range(10))
    assert len(told.take()) == 4
    assert told.lost == 7
