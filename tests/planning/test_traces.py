"""Traffic that is made up: its rate, its shape, and that chance can be repeated."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from shoal.planning.traces import bursty, constant, diurnal, poisson

MAKERS = [constant, poisson, bursty, diurnal]


@pytest.mark.parametrize("make", MAKERS)
def test_a_trace_goes_forward_within_its_duration(make):
    times = list(make(200, 20))
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert times[0] >= 0
    assert times[-1] < 20


@pytest.mark.parametrize(
    ("make", "extra"),
    [(constant, {}), (poisson, {}), (bursty, {}), (diurnal, {"period_s": 20})],
)
def test_a_trace_has_its_rate_on_average(make, extra):
    assert len(list(make(500, 100, **extra))) == pytest.approx(50_000, rel=0.02)


@pytest.mark.parametrize("make", [poisson, bursty, diurnal])
def test_the_same_seed_gives_the_same_times(make):
    assert list(make(50, 10, seed=1)) == list(make(50, 10, seed=1))
    assert list(make(50, 10, seed=1)) != list(make(50, 10, seed=2))


def test_constant_requests_are_at_equal_distances():
    assert list(constant(4, 1)) == [0, 0.25, 0.5, 0.75]


def test_random_requests_are_as_irregular_as_those_of_many_callers():
    gaps = [later - earlier for earlier, later in pairwise(poisson(100, 200))]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation / mean == pytest.approx(1, rel=0.05)


def test_nothing_comes_between_bursts():
    times = list(bursty(100, 30, on_s=0.5, off_s=1.5))
    assert all(at % 2 < 0.5 for at in times)
    assert {int(at // 2) for at in times} == set(range(15))


def test_a_burst_is_cut_off_by_the_end():
    assert max(bursty(1000, 4.25, on_s=0.5, off_s=1.5)) == pytest.approx(4.25, abs=0.02)


def test_a_day_is_lowest_at_its_ends_and_highest_at_noon():
    times = list(diurnal(1000, 24, period_s=24, swing=0.9))
    hours = [sum(hour <= at < hour + 1 for at in times) for hour in range(24)]
    assert hours[0] == pytest.approx(100, rel=0.3)
    assert hours[12] == pytest.approx(1900, rel=0.1)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(make, rate):
    with pytest.raises(ValueError, match="rate must be more than 0"):
        make(rate, 1)


def test_pauses_and_swings_that_are_none_are_refused():
    with pytest.raises(ValueError, match="off_s must be at least 0"):
        bursty(1, 1, off_s=-1)
    with pytest.raises(ValueError, match="swing must be from 0 to 1"):
        diurnal(1, 1, swing=1.5)
