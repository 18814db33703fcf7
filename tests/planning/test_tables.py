"""Tables and numbers for people."""

from __future__ import annotations

import math

import pytest

from shoal.planning.tables import duration, facts, percent, table, three_digits


def test_a_table_has_its_names_to_the_left_and_its_figures_to_the_right():
    assert table(["size", "p99"], [["1", "2.5 ms"], ["16", "10 ms"]]).splitlines() == [
        "size     p99",
        "----  ------",
        "1     2.5 ms",
        "16     10 ms",
    ]


def test_a_table_without_rows_is_its_head():
    assert table(["size", "p99"], []).splitlines() == ["size  p99", "----  ---"]


def test_facts_are_aligned():
    assert facts([("a", "1"), ("long", "")]) == "a     1\nlong"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5e-8, "0.025 µs"),
        (0.0000525, "52.5 µs"),
        (0.0025, "2.5 ms"),
        (0.1, "100 ms"),
        (1, "1 s"),
        (1234.5, "1,234 s"),
        (math.nan, "-"),
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
