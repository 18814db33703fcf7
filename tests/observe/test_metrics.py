"""Metrics: the engine's counters as Prometheus reads them."""

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from shoal.observe.collector import ShoalCollector
from shoal.observe.metrics import NO_ENDPOINT, AnswerCounts, ItemTimes, StreamTimes
from shoal.testing import settle

pytestmark = pytest.mark.anyio


def samples_of(registry):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


async def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def test_a_batchers_counters_are_translated():
    batcher = shoal.Batcher(doubled, max_batch_size=3, batch_wait_timeout_s=None)
    answers = AnswerCounts()
    answers.count("a", 200)
    answers.count("a", 204)
    answers.count(NO_ENDPOINT, 404)
    registry = CollectorRegistry()
    registry.register(ShoalCollector(lambda: [("a", batcher.statistics())], answers, StreamTimes()))
    async with batcher as call:
        await call.map([1, 2, 3])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 4)
            await settle()
            waiting = samples_of(registry)
            await anyio.sleep(3)
            batcher.flush()
        samples = samples_of(registry)
    assert waiting["shoal_queued_requests", "a"] == 1
    assert samples["shoal_queued_requests", "a"] == 0
    assert samples["shoal_running_requests", "a"] == 0
    assert samples["shoal_running_batches", "a"] == 0
    assert samples["shoal_parked_requests", "a"] == 0
    assert samples["shoal_batcher_up", "a"] == 1
    assert samples["shoal_requests_total", "a", "finished"] == 4
    assert samples["shoal_requests_total", "a", "failed"] == 0
    assert samples["shoal_batches_total", "a", "full"] == 1
    assert samples["shoal_batches_total", "a", "flush"] == 1
    assert samples["shoal_batch_size_count", "a"] == 2
    assert samples["shoal_batch_size_sum", "a"] == 4
    assert samples["shoal_batch_size_bucket", "1.0", "a"] == 1
    assert samples["shoal_batch_size_bucket", "2.0", "a"] == 1
    assert samples["shoal_batch_size_bucket", "4.0", "a"] == 2
    assert samples["shoal_batch_size_bucket", "+Inf", "a"] == 2
    assert samples["shoal_batch_wait_seconds_sum", "a"] == pytest.approx(3)
    assert samples["shoal_batch_wait_seconds_bucket", "2.5", "a"] == 1
    assert samples["shoal_batch_wait_seconds_bucket", "5.0", "a"] == 2
    assert samples["shoal_batch_run_seconds_count", "a"] == 2
    assert samples["shoal_http_responses_total", "2xx", "a"] == 2
    assert samples["shoal_http_responses_total", NO_ENDPOINT, "4xx"] == 1


@pytest.mark.parametrize("items", [0, 1, 2, 255, 256, 257, 600])
def test_the_times_of_two_streams_are_those_between_their_own_items(items):
    times = ItemTimes()
    now = 0.0
    clocks = [times.clock(lambda: now), times.clock(lambda: now)]
    now = 3.0
    for _ in range(items):
        for clock in clocks:
            clock.tick()
        now += 0.25
    assert len(times.new_gaps) <= 256
    first, between = times.first.snapshot(), times.between.snapshot()
    assert (first.total, first.sum) == (min(2, 2 * items), 3 * min(2, 2 * items))
    gaps = max(0, 2 * items - 2)
    assert (between.total, between.sum) == (gaps, 0.25 * gaps)
    assert between.counts[between.bounds.index(0.25)] == gaps
    assert times.between.snapshot() == between
