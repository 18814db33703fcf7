"""Autoscaling: Ray Serve's rule, its delays, and the checks of its options."""

import dataclasses
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.core.replicas.autoscaling import Autoscaler, AutoscalingOptions

EXAMPLES = settings(max_examples=100)
AT_ONCE: dict[str, Any] = {"upscale_delay_s": 0, "downscale_delay_s": 0}


def decided(options: AutoscalingOptions, requests: float, replicas: int) -> int:
    """Returns the decision after a delay with a constant number of requests."""
    autoscaler = Autoscaler(options)
    autoscaler.observe(0.0, requests / 4, requests * 3 / 4)
    return autoscaler.decide(0.0, replicas)


# The number


@pytest.mark.parametrize(
    ("requests", "replicas", "wanted"),
    [(0, 4, 1), (2, 1, 1), (2.1, 1, 2), (8, 20, 4), (39, 1, 20), (40, 20, 20), (1000, 1, 20)],
)
def test_each_replica_gets_its_target(requests: float, replicas: int, wanted: int) -> None:
    options = AutoscalingOptions(max_replicas=20, target_ongoing_requests=2, **AT_ONCE)
    assert decided(options, requests, replicas) == wanted


@EXAMPLES
@given(
    replicas=st.integers(1, 100),
    wanted=st.integers(1, 100),
    target=st.sampled_from([0.1, 0.3, 0.7, 1.1, 3.0, 7.3]),
)
def test_what_fits_exactly_gets_no_replica_more(replicas: int, wanted: int, target: float) -> None:
    options = AutoscalingOptions(max_replicas=100, target_ongoing_requests=target, **AT_ONCE)
    assert decided(options, wanted * target, replicas) == wanted


@pytest.mark.parametrize(
    ("factors", "requests", "replicas", "wanted"),
    [
        ({"upscaling_factor": 0.5}, 16, 4, 10),
        ({"upscaling_factor": 0.01}, 16, 4, 5),
        ({"upscaling_factor": 2}, 8, 4, 12),
        ({"upscaling_factor": 2}, 2, 4, 2),
        ({"downscaling_factor": 0.5}, 2, 10, 6),
        ({"downscaling_factor": 0.01}, 2, 10, 9),
        ({"downscaling_factor": 2}, 8, 10, 6),
        ({"downscaling_factor": 2}, 2, 10, 1),
        ({"downscaling_factor": 0.5}, 16, 10, 16),
        ({"downscaling_factor": 0.5}, 9.5, 10, 10),
    ],
)
def test_a_factor_moderates_its_own_direction(factors, requests, replicas, wanted):
    options = AutoscalingOptions(max_replicas=100, target_ongoing_requests=1, **factors, **AT_ONCE)
    assert decided(options, requests, replicas) == wanted


def test_what_is_out_of_bounds_is_put_right_without_a_delay() -> None:
    autoscaler = Autoscaler(AutoscalingOptions(min_replicas=2, max_replicas=4))
    assert autoscaler.decide(0.0, 1) == 2
    autoscaler.observe(0.0, 0, 6)
    assert autoscaler.decide(0.0, 9) == 4


# Going without replicas


@pytest.mark.parametrize(("factor", "wanted"), [(1, 1), (0.1, 1), (2.5, 3), (50, 10)])
def test_the_first_request_gets_replicas_without_a_delay(factor: float, wanted: int) -> None:
    options = AutoscalingOptions(min_replicas=0, upscaling_factor=factor)
    autoscaler = Autoscaler(options)
    for second in range(0, 100, 10):
        autoscaler.observe(second, 0, 0)
        assert autoscaler.decide(second, 0) == 0
    autoscaler.observe(95, 1, 0)
    assert autoscaler.decide(95, 0) == wanted


@pytest.mark.parametrize(("factor", "replicas"), [(1, 2), (2, 1)])
def test_the_last_replica_stays_while_there_is_a_request(factor: float, replicas: int) -> None:
    options = AutoscalingOptions(min_replicas=0, downscaling_factor=factor, **AT_ONCE)
    autoscaler = Autoscaler(options)
    for now, ongoing, wanted in [(0, 1, 1), (100, 1, 1), (200, 1, 1)]:
        autoscaler.observe(now, 0, ongoing)
        replicas = autoscaler.decide(now, replicas)
        assert replicas == wanted


# The average


@EXAMPLES
@given(
    measured=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), min_size=1, max_size=12),
    later=st.integers(0, 40),
    look_back=st.integers(1, 60),
)
def test_requests_are_averaged_by_how_long_there_were_so_many(measured, later, look_back):
    given = {"target_ongoing_requests": 0.02, "look_back_period_s": look_back, **AT_ONCE}
    options = AutoscalingOptions(max_replicas=4096, **given)
    autoscaler = Autoscaler(options)
    each_second: list[int] = []
    now, requests = 0, 0
    for pause, requests_then in measured:
        each_second += [requests] * pause if each_second or now else []
        now, requests = (now + pause, requests_then) if each_second or now else (1, requests_then)
        autoscaler.observe(now, 0, requests)
    each_second += [requests] * later
    now += later
    seen = each_second[-look_back:] or [requests]
    average = sum(seen) / len(seen)
    assume(requests > 1)  # the last measurement must ask for more as well
    assert autoscaler.decide(now, 1) == max(1, math.ceil(average * 50 - 1e-6))


def test_old_measurements_are_forgotten() -> None:
    autoscaler = Autoscaler(AutoscalingOptions(look_back_period_s=30))
    for second in range(10_000):
        autoscaler.observe(second, 1, 1)
    assert len(autoscaler._seen) <= 32


# The delays


def first_change(
    options: AutoscalingOptions, load: dict[float, float], replicas: int, until: float = 1000
) -> tuple[float, int] | None:
    """Measures each second; returns when the number first changes, and to what."""
    autoscaler = Autoscaler(options)
    requests = 0.0
    for second in range(int(until)):
        requests = load.get(second, requests)
        autoscaler.observe(second, 0, requests)
        wanted = autoscaler.decide(second, replicas)
        if wanted != replicas:
            return second, wanted
    return None


def test_more_replicas_come_when_the_delay_is_over() -> None:
    options = AutoscalingOptions(upscale_delay_s=20, look_back_period_s=10)
    # The first measurement that sees the load is averaged a second later.
    assert first_change(options, {0: 2, 50: 8}, 1) == (71, 4)


def test_fewer_replicas_come_when_the_other_delay_is_over() -> None:
    options = AutoscalingOptions(downscale_delay_s=200, look_back_period_s=10)
    at, wanted = first_change(options, {0: 8, 50: 2}, 4) or (0, 0)
    # The average calls for fewer once a third of the look-back period has the smaller load.
    assert wanted == 1
    assert 250 < at <= 260


def test_the_delay_starts_over_when_the_load_does_not_last() -> None:
    options = AutoscalingOptions(upscale_delay_s=30, look_back_period_s=1)
    load = {0: 2.0, 50: 8.0, 70: 2.0, 75: 8.0}
    assert first_change(options, load, 1) == (106, 4)


def test_a_decision_starts_the_delay_over() -> None:
    autoscaler = Autoscaler(AutoscalingOptions(upscale_delay_s=30, look_back_period_s=10))
    changes, replicas = [], 1
    for second in range(120):
        autoscaler.observe(second, 0, replicas * 4)
        wanted = autoscaler.decide(second, replicas)
        if wanted != replicas:
            changes.append((second, wanted))
            replicas = wanted
    assert [wanted for _, wanted in changes] == [2, 4, 8]
    assert all(later - sooner >= 30 for (sooner, _), (later, _) in pairwise(changes))


@pytest.mark.parametrize("burst_s", [1, 10, 29])
@pytest.mark.parametrize("look_back_s", [10, 30, 300])
def test_a_burst_that_is_shorter_than_the_delay_adds_no_replicas(burst_s, look_back_s):
    options = AutoscalingOptions(upscale_delay_s=30, look_back_period_s=look_back_s)
    assert first_change(options, {0: 2, 50: 200, 50 + burst_s: 2}, 1) is None


def number_of_changes(options: AutoscalingOptions, low: float, high: float) -> int:
    """Measures a noisy load every 10 seconds for two hours."""
    chance, autoscaler, replicas, changes = random.Random(1), Autoscaler(options), 2, 0
    for second in range(0, 7200, 10):
        autoscaler.observe(second, 0, chance.uniform(low, high))
        wanted = autoscaler.decide(second, replicas)
        changes, replicas = changes + (wanted != replicas), wanted
    return changes


@pytest.mark.parametrize(("low", "high", "calmly"), [(5.5, 8.5, 3), (1, 13, 6)])
def test_noise_around_a_constant_load_makes_few_changes(low, high, calmly):
    assert 1 <= number_of_changes(AutoscalingOptions(min_replicas=2), low, high) <= calmly
    nervous = AutoscalingOptions(min_replicas=2, look_back_period_s=1, **AT_ONCE)
    assert number_of_changes(nervous, low, high) > 50


# The options


def test_the_defaults_are_ray_serves() -> None:
    assert dataclasses.asdict(AutoscalingOptions()) == {
        "min_replicas": 1,
        "max_replicas": 10,
        "target_ongoing_requests": 2.0,
        "upscale_delay_s": 30.0,
        "downscale_delay_s": 600.0,
        "upscaling_factor": 1.0,
        "downscaling_factor": 1.0,
        "look_back_period_s": 30.0,
        "metrics_interval_s": 10.0,
    }


def test_rays_older_factor_stands_for_both() -> None:
    both = AutoscalingOptions.of({"smoothing_factor": 0.5})
    assert (both.upscaling_factor, both.downscaling_factor) == (0.5, 0.5)
    one = AutoscalingOptions.of({"upscaling_factor": 2, "smoothing_factor": 0.5})
    assert (one.upscaling_factor, one.downscaling_factor) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"min_replicas": -1}, ValueError, "min_replicas must be at least 0, not -1"),
        ({"min_replicas": "one"}, TypeError, "min_replicas must be a whole number, not 'one'"),
        ({"max_replicas": 0, "min_replicas": 0}, ValueError, "max_replicas must be at least 1"),
        ({"max_replicas": 1.5}, TypeError, "max_replicas must be a whole number, not 1.5"),
        ({"max_replicas": True}, TypeError, "max_replicas must be a whole number, not True"),
        ({"min_replicas": 11}, ValueError, "min_replicas=11 must not be above max_replicas=10"),
        ({"target_ongoing_requests": 0}, ValueError, "must be above 0, and finite, not 0"),
        ({"target_ongoing_requests": "2"}, TypeError, "must be a number, such as 2, not '2'"),
        ({"target_ongoing_requests": math.nan}, ValueError, "must be above 0"),
        ({"upscaling_factor": -1}, ValueError, "upscaling_factor must be above 0"),
        ({"downscaling_factor": math.inf}, ValueError, "downscaling_factor must be above 0"),
        ({"smoothing_factor": 0}, ValueError, "smoothing_factor must be above 0"),
        ({"smoothing_factor": None}, TypeError, "smoothing_factor must be a number"),
        ({"upscale_delay_s": -1}, ValueError, "upscale_delay_s must be at least 0 seconds"),
        ({"downscale_delay_s": "1m"}, TypeError, "downscale_delay_s must be a number of seconds"),
        ({"look_back_period_s": 0}, ValueError, "look_back_period_s must be above 0"),
        ({"metrics_interval_s": False}, TypeError, "metrics_interval_s must be a number of sec"),
        (
            {"max_replica": 3},
            TypeError,
            "not an option of autoscaling; did you mean 'max_replicas'?",
        ),
        ({"zebra": 3}, TypeError, "'zebra' is not an option of autoscaling; there are min_replica"),
        ({3: 3}, TypeError, "3 is not an option of autoscaling"),
        (None, TypeError, "autoscaling must be a mapping or AutoscalingOptions, not None; write {"),
        ([("max_replicas", 3)], TypeError, "autoscaling must be a mapping or AutoscalingOptions"),
    ],
)
def test_what_is_no_autoscaling_is_refused_with_what_was_passed(given, kind, says):
    with pytest.raises(kind) as refused:
        AutoscalingOptions.of(given)
    assert says in str(refused.value)
