"""Metrics: the engine's counters as Prometheus reads them."""

import socket
import sys

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from handlers import double
from shoal.asgi import extensions
from shoal.asgi.extensions import ConnectionCounts
from shoal.core.histogram import ItemTimes
from shoal.observe.collector import ShoalCollector
from shoal.testing import settle

CALL = "__call__"


def samples_of(registry):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def registry_of(batcher, *times):
    registry = CollectorRegistry()
    found = lambda: [("a", "__call__", batcher.statistics())]  # noqa: E731
    registry.register(ShoalCollector(found, lambda: times, {}))
    return registry


async def test_a_batchers_counters_are_translated():
    batcher = shoal.Batcher(double, max_batch_size=3, batch_wait_timeout_s=None)
    registry = registry_of(batcher)
    async with batcher as call:
        await call.map([1, 2, 3])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 4)
            await settle()
            waiting = samples_of(registry)
            await anyio.sleep(3)
            batcher.flush()
        samples = samples_of(registry)
    assert waiting["shoal_queued_requests", CALL, "a"] == 1
    assert samples["shoal_queued_requests", CALL, "a"] == 0
    assert samples["shoal_running_requests", CALL, "a"] == 0
    assert samples["shoal_running_batches", CALL, "a"] == 0
    assert samples["shoal_parked_requests", CALL, "a"] == 0
    assert samples["shoal_batcher_up", CALL, "a"] == 1
    assert samples["shoal_requests_total", CALL, "a", "finished"] == 4
    assert samples["shoal_requests_total", CALL, "a", "failed"] == 0
    assert samples["shoal_batches_total", CALL, "a", "full"] == 1
    assert samples["shoal_batches_total", CALL, "a", "flush"] == 1
    assert samples["shoal_batch_size_count", CALL, "a"] == 2
    assert samples["shoal_batch_size_sum", CALL, "a"] == 4
    assert samples["shoal_batch_size_bucket", "1.0", CALL, "a"] == 1
    assert samples["shoal_batch_size_bucket", "2.0", CALL, "a"] == 1
    assert samples["shoal_batch_size_bucket", "4.0", CALL, "a"] == 2
    assert samples["shoal_batch_size_bucket", "+Inf", CALL, "a"] == 2
    assert samples["shoal_batch_size_limit", CALL, "a"] == 3
    assert samples["shoal_queue_seconds_sum", CALL, "a"] == pytest.approx(3)
    assert samples["shoal_queue_seconds_bucket", "2.5", CALL, "a"] == 3
    assert samples["shoal_queue_seconds_bucket", "5.0", CALL, "a"] == 4
    assert samples["shoal_batch_run_seconds_count", CALL, "a"] == 2


async def test_what_a_batcher_did_to_its_calls_is_counted():
    async def picky(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError
        return items

    options = {"max_batch_size": 4, "batch_wait_timeout_s": 1, "isolate_errors": True}
    batcher = shoal.Batcher(picky, allowed_batch_sizes=[4], **options)
    async with batcher as call:
        await call.map([0, 1, 2], return_exceptions=True)
    samples = samples_of(registry_of(batcher))
    assert samples["shoal_batch_padding_total", CALL, "a"] == 1
    # The halves: [0] and [1, 2].
    assert samples["shoal_isolating_runs_total", CALL, "a"] == 2
    assert samples["shoal_requests_total", CALL, "a", "failed"] == 1
    assert ("shoal_batch_cost_total", CALL, "a") not in samples


async def test_waits_for_a_limit_and_requests_that_go_back_are_counted():
    runs = 0

    async def refused_once(items: list[int]) -> list[int]:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise shoal.RetryLater(5)
        return items

    batcher = shoal.Batcher(refused_once, max_batch_size=2, limit=shoal.Limit(batches_per_s=1))
    async with batcher as call:
        await call.map(range(4))
    samples = samples_of(registry_of(batcher))
    assert samples["shoal_retried_requests_total", CALL, "a"] == 2
    assert samples["shoal_batches_total", CALL, "a", "limit"] == 2
    assert samples["shoal_requests_total", CALL, "a", "failed"] == 0


async def test_costs_and_splits_are_counted():
    async def lengths(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    batcher = shoal.Batcher(
        lengths,
        max_batch_size=8,
        batch_size_fn=len,
        allowed_batch_sizes=[4, 8],
        pad=lambda texts, _size: texts,
        split=lambda text, most: [text[:most], text[most : most + 8], text[most + 8 :]],
        join=sum,
    )
    async with batcher as call:
        assert await call("x" * 19) == 19
        assert await call("x") == 1
    samples = samples_of(registry_of(batcher))
    assert samples["shoal_split_calls_total", CALL, "a"] == 1
    assert samples["shoal_split_requests_total", CALL, "a"] == 3
    assert samples["shoal_batch_cost_total", CALL, "a"] == 8 + 8 + 4 + 4
    assert samples["shoal_batch_padding_total", CALL, "a"] == 1 + 3


async def test_a_continuous_batch_is_shown_by_its_requests():
    async def steps(batch: shoal.OpenBatch[int, int]) -> None:
        async for _ in batch.steps():
            await anyio.sleep(1)
            batch.active[0].finish(1)

    batcher = shoal.Batcher(steps, fill="continuous", max_batch_size=4)
    registry = registry_of(batcher)
    async with batcher as call:
        await call(1)
        await anyio.sleep(9)
        idle = samples_of(registry)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 1)
            tasks.start_soon(call, 2)
            await anyio.sleep(0.5)
            busy = samples_of(registry)
    ended = samples_of(registry)
    figures = ("running_batches", "running_requests", "batch_joins_total", "batch_leaves_total")
    for samples, expected in ((idle, (0, 0, 1, 1)), (busy, (1, 2, 3, 1)), (ended, (0, 0, 3, 3))):
        assert tuple(samples[f"shoal_{name}", CALL, "a"] for name in figures) == expected
    assert busy["shoal_batch_occupancy_seconds_total", CALL, "a"] == pytest.approx(2)
    assert busy["shoal_batch_busy_seconds_total", CALL, "a"] == pytest.approx(1.5)
    assert ended["shoal_batch_step_size_sum", CALL, "a"] == 1 + 2 + 1
    assert ended["shoal_batch_size_count", CALL, "a"] == 0
    assert ended["shoal_batch_run_seconds_count", CALL, "a"] == 0


@pytest.mark.parametrize("items", [0, 1, 2, 255, 256, 257, 600])
def test_the_times_of_two_streams_are_those_between_their_own_items(items):
    times = ItemTimes()
    now = 0.0
    clocks = [times.clock(lambda: now), times.clock(lambda: now)]
    now = 3.0
    for _ in range(items):
        for clock in clocks:
            clock()
        now += 0.25
    assert len(times.between.new) <= 256
    first, between = times.first.snapshot(), times.between.snapshot()
    assert (first.total, first.sum) == (min(2, 2 * items), 3 * min(2, 2 * items))
    gaps = max(0, 2 * items - 2)
    assert (between.total, between.sum) == (gaps, 0.25 * gaps)
    assert between.counts[between.bounds.index(0.25)] == gaps
    assert times.between.snapshot() == between


@pytest.fixture
def pair():
    """A TCP connection: the server's end and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            yield accepted, client


def exchange(pair, received, sent):
    ours, theirs = pair
    theirs.sendall(b"x" * received)
    while received:
        received -= len(ours.recv(received))
    ours.sendall(b"x" * sent)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the bytes of a connection")
def test_bytes_are_counted_while_a_connection_is_open_and_after(pair):
    counts = ConnectionCounts(7)
    assert counts.totals() == (7, 0, 0, None, None)
    counts.opened(pair[0])
    exchange(pair, 1000, 300)
    assert counts.totals() == (7, 1, 1, 1000, 300)
    exchange(pair, 10, 0)
    for _ in range(2):
        counts.closing(pair[0])
        assert counts.totals() == (7, 0, 1, 1010, 300)


@pytest.mark.parametrize("kind", ["a UNIX socket", "another system", "an old kernel"])
def test_where_the_kernel_does_not_tell_the_bytes_there_are_none(pair, kind, monkeypatch):
    ours, theirs = socket.socketpair() if kind == "a UNIX socket" else pair
    if kind == "another system":
        monkeypatch.setattr(extensions, "_TCP_INFO", None)
    elif kind == "an old kernel":
        monkeypatch.setattr(extensions, "_SIZE", 100_000)
    with ours, theirs:
        counts = ConnectionCounts(7)
        counts.opened(ours)
        exchange((ours, theirs), 10, 10)
        assert counts.totals() == (7, 1, 1, None, None)
        counts.closing(ours)
    assert counts.totals() == (7, 0, 1, None, None)


def test_a_broken_connection_counts_as_well(pair):
    counts = ConnectionCounts(7)
    counts.opened(pair[0])
    pair[0].close()
    assert counts.totals()[:3] == (7, 1, 1)
    counts.closing(pair[0])
    assert counts.totals()[:3] == (7, 0, 1)
