"""The samples of the last seconds."""

import anyio
import pytest

import shoal
from shoal.observe.history import MOST_SAMPLES, BatcherReading, BatchHistory, Sampler
from shoal.testing import settle


async def slow(items: list[int]) -> list[int]:
    await anyio.sleep(0.25)
    return items


@pytest.fixture
def batchers():
    return []


@pytest.fixture
def sampler(batchers):
    history = BatchHistory()
    for batcher in batchers:
        batcher.observers.add(history)
    sampler = Sampler(
        history,
        lambda: [BatcherReading(one.name, one.statistics(), False, False) for one in batchers],
    )
    sampler.history = history
    return sampler


async def test_a_sample_has_what_happened_in_a_second(sampler, batchers):
    batcher = shoal.Batcher(
        slow, max_batch_size=4, batch_wait_timeout_s=0.5, priority_levels=2, name="slow"
    )
    batchers.append(batcher)
    batcher.observers.add(sampler.history)
    async with batcher as call, anyio.create_task_group() as tasks:
        now = anyio.current_time()
        assert sampler.step(now)
        assert not sampler.step(now + 0.5)
        assert not sampler.samples
        for item in range(6):
            tasks.start_soon(call, item)
        await anyio.sleep(0.3)
        with anyio.CancelScope() as scope:  # leaves the queue
            scope.deadline = anyio.current_time() + 0.01
            await call(6)
        await anyio.sleep(0.69)
        tasks.start_soon(call.options(priority=1), 7)
        tasks.start_soon(call.options(priority=2), 8)
        tasks.start_soon(call.options(priority=2), 9)
        await settle()
        assert sampler.step(now + 1)
        (sample,) = sampler.samples
        one = sample["batchers"]["slow"]
        assert (one["finished"], one["left"], one["failed"], one["refused"]) == (6, 1, 0, 0)
        assert (one["batches"], one["size"]) == (2, 3)
        assert one["reasons"] == {"full": 1, "timer": 1}
        assert (one["p50"], one["p99"]) == (pytest.approx(0.25), pytest.approx(0.75))
        assert one["levels"] == {"1": 1, "2": 2}
        assert one["queued"] == 3
        assert sample["all"]["finished"] == 6
        assert sample["all"]["p95"] == one["p95"]
    assert sampler.step(now + 2)
    assert [each["number"] for each in sampler.since(1)] == [2]
    assert sampler.since(1)[0]["batchers"]["slow"]["finished"] == 3


async def test_a_time_without_samples_is_no_sample(sampler, batchers):
    assert sampler.step(0)
    assert sampler.step(100)
    assert not sampler.samples
    for now in range(101, 102 + MOST_SAMPLES):
        assert sampler.step(now)
    assert len(sampler.samples) == MOST_SAMPLES


async def test_samples_of_an_earlier_watch_are_not_what_happens_now(sampler, batchers):
    for now in (0, 1, 2):
        sampler.step(now)
    assert [each["number"] for each in sampler.samples] == [1, 2]
    assert sampler.step(100)
    assert not sampler.since(0)
    sampler.step(101)
    assert [each["number"] for each in sampler.since(0)] == [3]


async def test_a_batcher_that_replaces_another_counts_from_nothing(sampler, batchers):
    first, second = shoal.Batcher(slow, name="slow"), shoal.Batcher(slow, name="slow")
    async with first as one, second as two:
        await one.map([1, 2])
        batchers.append(first)
        sampler.step(0)
        batchers[0] = second
        await two(1)
        sampler.step(1)
    assert sampler.samples[-1]["batchers"]["slow"]["finished"] == 0
