"""Traffic that is made up, and traffic that is read from files."""

import math
from itertools import pairwise

import pytest

from shoal.core.simulation_results import Arrival
from shoal.planning.traces import Item, bursty, constant, poisson, read_trace

MAKERS = [constant, poisson, bursty]


@pytest.mark.parametrize("make", MAKERS)
def test_a_trace_goes_forward_within_its_duration(make):
    times = list(make(200, 20))
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert times[0] >= 0
    assert times[-1] < 20


@pytest.mark.parametrize("make", MAKERS)
def test_a_trace_has_its_rate_on_average(make):
    assert len(list(make(500, 100))) == pytest.approx(50_000, rel=0.02)


@pytest.mark.parametrize("make", [poisson, bursty])
def test_the_same_seed_gives_the_same_times(make):
    assert list(make(50, 10, seed=1)) == list(make(50, 10, seed=1))
    assert list(make(50, 10, seed=1)) != list(make(50, 10, seed=2))


def test_constant_requests_are_at_equal_distances():
    assert list(constant(4, 1)) == [0, 0.25, 0.5, 0.75]


def test_nothing_comes_between_bursts():
    times = list(bursty(100, 30, on_s=0.5, off_s=1.5))
    assert all(at % 2 < 0.5 for at in times)
    assert {int(at // 2) for at in times} == set(range(15))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(make, rate):
    with pytest.raises(ValueError, match="rate must be more than 0"):
        make(rate, 1)


def test_pauses_that_are_none_are_refused():
    with pytest.raises(ValueError, match="off_s must be at least 0"):
        bursty(1, 1, off_s=-1)


@pytest.fixture
def recorded(tmp_path):
    """Writes a file and reads it as a trace."""

    def read(text, name="trace.csv"):
        path = tmp_path / name
        path.write_text(text)
        return read_trace(path)

    return read


def test_columns_are_read_by_their_names(recorded):
    recording = recorded("priority, at,timeout_s,cost,bucket,queue_timeout_s\n2,1.5,0.1,3,a,0.2\n")
    assert recording.arrivals == [Arrival(0.0, Item(3.0, "a"), 2, 0.1, 0.2)]
    assert recording.columns == {
        *("at", "priority", "timeout_s", "cost", "bucket", "queue_timeout_s")
    }


def test_an_empty_cell_says_nothing(recorded):
    recording = recorded("at,priority,cost\n0,,\n1,2,\n")
    assert recording.arrivals == [Arrival(0.0), Arrival(1.0, priority=2)]


def test_lines_may_be_in_any_order_and_blank(recorded):
    recording = recorded("\nat\n10.5\n10\n\n12\n", "times.txt")
    assert recording.arrivals == [Arrival(0.0), Arrival(0.5), Arrival(2.0)]


@pytest.mark.parametrize("name", ["trace.ndjson", "x.trace", "trace", "monday.csv", "trace.json"])
def test_objects_are_read_line_by_line_whatever_the_file_is_called(recorded, name):
    text = '\n{"at": 2, "priority": null}\n\n{"at": 1, "bucket": 7, "user": "x"}\n'
    recording = recorded(text, name)
    assert recording.arrivals == [Arrival(0.0, Item(bucket="7")), Arrival(1.0)]
    assert recording.unknown == ("user",)


@pytest.mark.parametrize("name", ["trace.csv", "trace.ndjson"])
def test_a_byte_order_mark_is_not_part_of_the_text(recorded, name):
    text = {"trace.csv": "at\n1\n2\n", "trace.ndjson": '{"at": 1}\n{"at": 2}\n'}[name]
    assert len(recorded(f"\ufeff{text}", name).arrivals) == 2


def test_dates_are_times(recorded):
    text = "at\n2026-01-31T12:00:00Z\n2026-01-31T12:00:01.5+00:00\n"
    assert [one.at for one in recorded(text).arrivals] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("at\n1\nsoon\n", "line 3: at must be a time in seconds, or like 2026-01-31T12:00:00, not"),
        ("at\nnan\n", "line 2: at must be a time"),
        ("at,priority\n1,0\n", "line 2: priority must be a whole number from 1 on, not '0'"),
        ("at,priority\n1,1.5\n", "line 2: priority must be a whole number"),
        ("at,timeout_s\n1,-1\n", "line 2: timeout_s must be a number of seconds from 0 on"),
        ("at,cost\n1,much\n", "line 2: cost must be a number from 0 on, not 'much'"),
        ("at,cost\n1\n", r"line 2: want 2 cells \(at, cost\), got 1"),
        ("time\nx\n", "line 2: no time; want a column 'at'"),
        ("at\n", "has no requests"),
        ("", "has no requests"),
        ('{"at": 1}\n{"at": \n', "line 2: not JSON"),
        ('{"at": 1}\n[1]\n', r"line 2: want an object like {\"at\": 0.25}, got \[1\]"),
        ('{"at": true}\n', "line 1: at must be a time"),
        ('{"at": [1]}\n', "line 1: at must be a time"),
        ('{"at": 1, "priority": true}\n', "line 1: priority must be a whole number"),
        ('{"at": 1, "cost": false}\n', "line 1: cost must be a number"),
    ],
)
def test_a_mistake_is_told_with_its_line(recorded, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        recorded(text)


def test_a_file_that_is_no_text_is_told(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"at\n\xff\xfe\n")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_trace(path)
