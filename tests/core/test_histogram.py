"""Histograms, and those of requests: what is counted of each."""

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.core.histogram import (
    LEFT,
    MOST_NEW,
    OUTCOMES,
    TIME_BOUNDS_S,
    Histogram,
    HistogramSnapshot,
    RequestTimes,
    outcome_of,
    status_of,
)


def test_an_observation_at_a_bound_is_counted_below_it():
    counts = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, math.inf):
        counts.gather((value,))
    assert counts.snapshot() == HistogramSnapshot((1.0, 2.0), (2, 2, 2), 6, math.inf)


TIMES = st.one_of(st.sampled_from(TIME_BOUNDS_S), st.floats(0, 70), st.just(0.0))


def counted(values):
    """The counts of the buckets of some times."""
    buckets = [bisect_left(TIME_BOUNDS_S, value) for value in values]
    return tuple(buckets.count(bucket) for bucket in range(len(TIME_BOUNDS_S) + 1))


@given(st.lists(st.lists(TIMES)))
def test_many_observations_at_once_count_as_one_after_the_other(parts):
    counts = Histogram(TIME_BOUNDS_S)
    for part in parts:
        counts.observe_all(part)
    values = [value for part in parts for value in part]
    assert counts.snapshot().counts == counted(values)
    assert counts.snapshot().sum == pytest.approx(sum(values))


@pytest.mark.parametrize("count", [0, 1, MOST_NEW - 1, MOST_NEW, MOST_NEW + 1, 1000])
def test_what_is_gathered_is_counted_as_if_it_was_observed(count):
    values = [(number * 7919 % 1000) / 100 for number in range(count)]
    gathered, observed = Histogram(TIME_BOUNDS_S), Histogram(TIME_BOUNDS_S)
    for value in [*values, *TIME_BOUNDS_S]:
        gathered.gather([value])
        observed.gather((value,))
    assert len(gathered.new) < MOST_NEW
    found, expected = gathered.snapshot(), observed.snapshot()
    assert found.counts == expected.counts
    assert found.sum == pytest.approx(expected.sum)


class Meanwhile(float):
    """A time that is compared while the event loop's thread goes on."""

    go_on = staticmethod(lambda: None)

    def __lt__(self, other):
        self.go_on()
        return float(self) < other


def test_a_snapshot_in_another_thread_loses_no_observation(monkeypatch):
    """`Batcher.statistics` is called in plain code, beside the thread of `shoal.blocking`."""
    counts = Histogram((1.0, 2.0))
    counts.gather((Meanwhile(0.5), Meanwhile(1.5)))
    monkeypatch.setattr(Meanwhile, "go_on", staticmethod(lambda: counts.gather((3.0,))))
    counts.snapshot()
    monkeypatch.undo()
    assert counts.snapshot().counts[:2] == (1, 1)
    assert counts.snapshot().counts[2] > 0


@pytest.mark.parametrize("count", [1, MOST_NEW - 1, MOST_NEW, MOST_NEW + 1, 3 * MOST_NEW])
def test_many_are_counted_together_and_few_are_kept(count):
    times = RequestTimes()
    for _ in range(count):
        times.count("a", "json", 200, 0.25)
    for _ in range(2):
        [one] = times
        assert (one.times.total, one.times.sum) == (count, 0.25 * count)
        assert one.times.counts[TIME_BOUNDS_S.index(0.25)] == count


def test_outcomes_are_of_a_fixed_set():
    times = RequestTimes()
    for status in range(1000):
        times.count("a", "json", status, 0.0)
    assert {one.outcome for one in times} == set(OUTCOMES)


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ((200, 204, 304), "ok"),
        ((400, 404, 405, 413, 422), "invalid"),
        ((429, 503), "unavailable"),
        ((408, 504), "timeout"),
        ((LEFT,), "left"),
        ((500, 501, 599), "failed"),
    ],
)
def test_outcomes_by_status(statuses, outcome):
    assert {outcome_of(status) for status in statuses} == {outcome}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (shoal.errors.Overloaded("x"), "unavailable"),
        (shoal.errors.BatcherClosed("x"), "unavailable"),
        (shoal.errors.DeadlineExceeded("x"), "timeout"),
        (shoal.errors.HandlerTimeout("x"), "timeout"),
        (shoal.errors.ItemTooLarge("x"), "invalid"),
        (shoal.errors.NoSuchModel("x"), "invalid"),
        (ValueError("x"), "failed"),
        (KeyboardInterrupt(), "left"),
    ],
)
def test_outcomes_by_error(error, outcome):
    assert outcome_of(status_of(error)) == outcome
