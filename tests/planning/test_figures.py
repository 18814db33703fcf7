"""Percentiles, and numbers for people."""

import math

import pytest

from shoal.planning.figures import duration, percent, percentile, percentiles, three_digits


def test_a_percentile_is_one_of_the_values():
    assert [percentile([1, 2, 3, 4], percent) for percent in (1, 25, 26, 50, 99.9, 100)] == [
        *(1, 1, 2, 2, 4, 4)
    ]
    assert math.isnan(percentile([], 50))


def test_percentiles_leave_out_what_has_no_value():
    found = {"p50": 1, "p90": 2, "p99": 2, "p99.9": 2, "max": 2}
    assert percentiles([2, math.nan, 1]) == found
    assert percentiles([math.nan]) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (2.5e-8, "0.025 µs"), (0.0000525, "52.5 µs"), (0.0025, "2.5 ms")),
        *((0.1, "100 ms"), (1, "1 s"), (1234.5, "1,234 s"), (math.nan, "-")),
    ],
)
def test_a_duration_has_a_unit_that_fits(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(5.994, "5.99"), (99.95, "100"), (12345.6, "12,346"), (math.nan, "-")]
)
def test_a_number_has_three_digits_or_all_before_the_point(number, text):
    assert three_digits(number) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.004, "0.4%"), (0.123, "12%"), (1, "100%")]
)
def test_a_share_is_percent(share, text):
    assert percent(share) == text
