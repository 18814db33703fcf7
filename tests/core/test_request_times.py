"""The times of requests: what is counted of each, by which words, and whose trace is shown."""

import pytest

import shoal
from shoal.core import histogram
from shoal.core.histogram import (
    LEFT,
    MOST_NEW,
    OUTCOMES,
    TIME_BOUNDS_S,
    RequestTimes,
    outcome_of,
    sampled_trace,
    status_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Clock:
    """Stands in for the clock of the module."""

    def __init__(self, monkeypatch):
        self.wall = 1e9
        monkeypatch.setattr(histogram.time, "time", lambda: self.wall)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def totals(times):
    return {
        (one.endpoint, one.protocol, one.outcome): (one.times.total, one.times.sum) for one in times
    }


def test_requests_are_told_apart_by_endpoint_protocol_and_outcome():
    times = RequestTimes()
    times.count("a", "json", 200, 1.0)
    times.count("a", "json", 204, 2.0)
    times.count("a", "oip", 200, 4.0)
    times.count("b", "json", 500, 8.0)
    assert totals(times) == {
        ("a", "json", "ok"): (2, 3),
        ("a", "oip", "ok"): (1, 4),
        ("b", "json", "failed"): (1, 8),
    }


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
        (ValueError("x"), "failed"),
        (KeyboardInterrupt(), "left"),
    ],
)
def test_outcomes_by_error(error, outcome):
    assert outcome_of(status_of(error)) == outcome


def test_a_bucket_shows_the_trace_of_a_request_that_it_counts(clock):
    times = RequestTimes()
    times.count("a", "json", 200, 0.2, {b"traceparent": PARENT})
    times.count("a", "json", 200, 3.0, {})
    [one] = times
    assert one.exemplars == {TIME_BOUNDS_S.index(0.25): (TRACE, pytest.approx(0.2), 1e9)}


def test_an_exemplar_is_replaced_at_most_once_a_second(clock):
    times = RequestTimes()

    def shown():
        [one] = times
        return [exemplar.trace_id for exemplar in one.exemplars.values()]

    for wall, expected in ((0, "1"), (0.9, "1"), (1.1, "3"), (-3600, "4")):
        number = {0: "1", 0.9: "2", 1.1: "3", -3600: "4"}[wall]
        clock.wall = 1e9 + wall
        parent = f"00-{number * 32}-b7ad6b7169203331-01".encode()
        times.count("a", "json", 200, 0.2, {b"traceparent": parent})
        assert shown() == [expected * 32]


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"00",
        PARENT[:-1],
        PARENT[:-2] + b"00",  # nobody has recorded it
        PARENT[:-2] + b"02",  # it is random, and not recorded
        PARENT + b"\n",
        PARENT + b"-more",  # which the first version does not have
        b"ff" + PARENT[2:],
        PARENT.upper(),
        b"00-" + 32 * b"0" + PARENT[35:],
        b'00-"} 1 # {trace_id="12345678901234' + PARENT[35:],
        PARENT.replace(b"0af", b"\xff\xff\xff"),
        b"01" + PARENT[2:] + b"-" + 1000 * b"x",
    ],
)
def test_what_is_no_recorded_trace_is_not_shown(given):
    assert sampled_trace(given) is None


@pytest.mark.parametrize("given", [PARENT, b"01" + PARENT[2:] + b"-more", PARENT[:-2] + b"03"])
def test_a_recorded_trace_is_shown(given):
    assert sampled_trace(given) == TRACE
