"""Histograms and snapshots."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.batch import Batch, DispatchReason
from shoal.core.counters import BatcherStatistics, ClosingCounts, Counters
from shoal.core.histogram import (
    MOST_NEW,
    SIZE_BOUNDS,
    TIME_BOUNDS_S,
    Histogram,
    HistogramSnapshot,
)


def test_an_observation_at_a_bound_is_counted_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, math.inf):
        histogram.observe(value)
    assert histogram.snapshot() == HistogramSnapshot((1.0, 2.0), (2, 2, 2), 6, math.inf)


def test_a_new_histogram_is_empty() -> None:
    assert Histogram((1.0,)).snapshot() == HistogramSnapshot((1.0,), (0, 0), 0, 0.0)


@given(st.lists(st.integers(0, 2000)))
def test_a_histogram_counts_each_observation_once(values: list[int]) -> None:
    histogram = Histogram(SIZE_BOUNDS)
    for value in values:
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.total == sum(snapshot.counts) == len(values)
    assert snapshot.sum == sum(values)
    assert len(snapshot.counts) == len(SIZE_BOUNDS) + 1
    for bucket, count in enumerate(snapshot.counts):
        assert count == sum(bisect_left(SIZE_BOUNDS, value) == bucket for value in values)


TIMES = st.one_of(st.sampled_from(TIME_BOUNDS_S), st.floats(0, 70), st.just(0.0))


def counted(values: list[float]) -> tuple[int, ...]:
    """The counts of the buckets of some times."""
    buckets = [bisect_left(TIME_BOUNDS_S, value) for value in values]
    return tuple(buckets.count(bucket) for bucket in range(len(TIME_BOUNDS_S) + 1))


@given(st.lists(st.lists(TIMES)))
def test_many_observations_at_once_count_as_one_after_the_other(parts: list[list[float]]) -> None:
    histogram = Histogram(TIME_BOUNDS_S)
    for part in parts:
        histogram.observe_all(part)
    values = [value for part in parts for value in part]
    assert histogram.snapshot().counts == counted(values)
    assert histogram.snapshot().sum == pytest.approx(sum(values))


def test_a_snapshot_stays_as_it_was() -> None:
    histogram = Histogram((1.0,))
    before = histogram.snapshot()
    histogram.observe(0.5)
    assert before.total == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.total = 1  # type: ignore[misc]


@pytest.mark.parametrize("bounds", [SIZE_BOUNDS, TIME_BOUNDS_S])
def test_the_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_a_batcher_starts_to_count_at_nothing_and_knows_every_reason() -> None:
    counters = Counters()
    assert counters.batches == dict.fromkeys(DispatchReason, 0)
    ended = (counters.finished, counters.failed, counters.cancelled, counters.expired)
    assert (*ended, counters.rejected) == (0, 0, 0, 0, 0)
    assert counters.batch_size.snapshot().bounds == SIZE_BOUNDS
    assert counters.wait_s.snapshot().bounds == counters.run_s.snapshot().bounds == TIME_BOUNDS_S


def test_two_batchers_count_apart() -> None:
    one, other = Counters(), Counters()
    one.batches[DispatchReason.FULL] += 1
    one.batch_size.observe(1)
    assert other.batches[DispatchReason.FULL] == other.batch_size.snapshot().total == 0


def test_what_is_given_to_users_is_frozen() -> None:
    for kind in (BatcherStatistics, ClosingCounts, HistogramSnapshot):
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_batch_knows_its_size_and_shows_itself() -> None:
    batch = Batch(7, DispatchReason.TIMER, [])
    assert (batch.id, batch.size, batch.active) == (7, 0, 0)
    assert repr(batch) == "<Batch 7 size=0 reason=timer>"


def test_a_reason_is_its_name() -> None:
    names = ["full", "timer", "idle", "regather", "deadline", "flush", "drain", "open"]
    assert [str(reason) for reason in DispatchReason] == names


@pytest.mark.parametrize("count", [0, 1, MOST_NEW - 1, MOST_NEW, MOST_NEW + 1, 1000])
def test_what_is_gathered_is_counted_as_if_it_was_observed(count: int) -> None:
    values = [(number * 7919 % 1000) / 100 for number in range(count)]
    gathered, observed = Histogram(TIME_BOUNDS_S), Histogram(TIME_BOUNDS_S)
    for value in [*values, *TIME_BOUNDS_S]:
        gathered.gather([value])
        observed.observe(value)
    assert len(gathered.new) < MOST_NEW
    found, expected = gathered.snapshot(), observed.snapshot()
    assert found.counts == expected.counts
    assert found.sum == pytest.approx(expected.sum)
