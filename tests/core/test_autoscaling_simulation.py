"""Simulated autoscaling: steps, drops, noise, starts that take long, and bounds."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.autoscaling_simulation import Step, simulate_autoscaling
from shoal.core.replicas.autoscaling import AutoscalingOptions

MINUTE = 60.0
HOUR = 60 * MINUTE


def changes(steps: list[Step]) -> list[tuple[float, int]]:
    """Returns when the number of replicas changed, and to what."""
    counts = [steps[0].ready, *(step.replicas for step in steps)]
    return [
        (step.at, step.replicas)
        for before, step in zip(counts, steps, strict=False)
        if step.replicas != before
    ]


def test_a_step_of_load_scales_up_after_the_delay_to_what_it_needs() -> None:
    options = AutoscalingOptions(metrics_interval_s=1, look_back_period_s=10)
    steps = simulate_autoscaling(options, [(0, 1), (100, 11)], service_s=1, until_s=HOUR)
    # 11 requests at once, and 2 for each replica
    [(at, replicas)] = changes(steps)
    assert replicas == 6
    assert 130 <= at <= 133


def test_a_drop_scales_down_after_the_other_delay() -> None:
    options = AutoscalingOptions(
        metrics_interval_s=1, look_back_period_s=10, upscale_delay_s=0, downscale_delay_s=300
    )
    steps = simulate_autoscaling(options, [(0, 11), (1000, 3)], service_s=1, until_s=HOUR)
    *_, (_, top), (at, replicas) = changes(steps)
    assert (top, replicas) == (6, 2)
    assert 1300 < at <= 1310


def test_an_idle_backend_goes_without_replicas_and_comes_back() -> None:
    options = AutoscalingOptions(min_replicas=0, metrics_interval_s=1, downscale_delay_s=60)
    load = [(0.0, 1.0), (100.0, 0.0), (1000.0, 1.0)]
    steps = simulate_autoscaling(options, load, service_s=1, until_s=1100)
    (_, first), (gone_at, none), (back_at, again) = changes(steps)
    assert (first, none, again) == (1, 0, 1)
    assert 160 <= gone_at <= 210
    assert back_at == 1001


def noisy(low: float, high: float, seed: int) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(second, chance.uniform(low, high)) for second in range(0, int(2 * HOUR), 5)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("low", "high", "calmly"),
    [pytest.param(5.5, 8.5, 3, id="some noise"), pytest.param(1, 13, 6, id="much noise")],
)
def test_noise_around_a_constant_load_makes_few_changes(
    low: float, high: float, calmly: int, seed: int
) -> None:
    """7 requests on average for 4 replicas of 2 each; the first change goes there."""
    load = noisy(low, high, seed)
    calm = AutoscalingOptions(min_replicas=2)
    at_once = AutoscalingOptions(
        min_replicas=2, upscale_delay_s=0, downscale_delay_s=0, look_back_period_s=1
    )
    steps = simulate_autoscaling(calm, load, service_s=1, until_s=2 * HOUR)
    assert 1 <= len(changes(steps)) <= calmly
    nervous = simulate_autoscaling(at_once, load, service_s=1, until_s=2 * HOUR)
    assert len(changes(nervous)) > 50


def test_bursts_that_are_shorter_than_the_delay_add_nothing() -> None:
    load = [(0.0, 1.0)]
    for burst in range(20):
        load += [(100.0 + 120 * burst, 40.0), (120.0 + 120 * burst, 1.0)]
    options = AutoscalingOptions(metrics_interval_s=1)
    assert changes(simulate_autoscaling(options, load, service_s=1, until_s=HOUR)) == []


def test_what_no_replica_has_room_for_is_queued() -> None:
    options = AutoscalingOptions(max_replicas=1, metrics_interval_s=10)
    steps = simulate_autoscaling(
        options, [(0, 5), (100, 0)], service_s=1, until_s=200, max_ongoing_requests=4
    )
    by_time = {step.at: step for step in steps}
    # 4 a second leave once there are 4; the first 4 arrive within t = ln 5 seconds.
    assert by_time[100.0].ongoing == 4
    assert by_time[100.0].queued == pytest.approx(100 - math.log(5), abs=1e-6)
    # The queue is empty after a quarter of its length in seconds; then the rest ends.
    left_s = by_time[100.0].queued / 4
    assert by_time[120.0].queued == pytest.approx(by_time[100.0].queued - 80, abs=1e-6)
    assert by_time[130.0].queued == 0
    assert by_time[130.0].ongoing == pytest.approx(4 * math.exp(-(30 - left_s)))


def test_replicas_help_when_they_have_started() -> None:
    options = AutoscalingOptions(upscale_delay_s=0, metrics_interval_s=10, look_back_period_s=10)
    steps = simulate_autoscaling(
        options, [(0, 6)], service_s=1, until_s=300, max_ongoing_requests=2, start_s=25
    )
    [(first_at, _), *_] = changes(steps)
    ready = {step.at: step.ready for step in steps}
    assert ready[first_at + 20] == 1
    assert ready[first_at + 30] > 1
    assert steps[-1].queued == 0


def test_a_load_of_nothing_stays_at_nothing() -> None:
    steps = simulate_autoscaling(AutoscalingOptions(), [], service_s=1, until_s=100)
    assert steps == [Step(10.0 * n, 0.0, 0.0, 1, 1) for n in range(11)]


@settings(max_examples=100)
@given(
    bounds=st.tuples(st.integers(0, 5), st.integers(1, 8)).map(sorted),
    knobs=st.fixed_dictionaries(
        {
            "target_ongoing_requests": st.floats(0.1, 5),
            "upscale_delay_s": st.sampled_from([0, 10, 60]),
            "downscale_delay_s": st.sampled_from([0, 10, 60]),
            "upscaling_factor": st.floats(0.1, 3),
            "downscaling_factor": st.floats(0.1, 3),
            "look_back_period_s": st.floats(1, 100),
        }
    ),
    rates=st.lists(st.floats(0, 50), max_size=8),
    room=st.sampled_from([1, 2.5, math.inf]),
    start_s=st.sampled_from([0, 7, 45]),
)
def test_bounds_hold_and_no_request_is_lost(
    bounds: list[int], knobs: dict[str, Any], rates: list[float], room: float, start_s: float
) -> None:
    fewest, most = bounds[0], max(1, bounds[1])
    options = AutoscalingOptions(min_replicas=fewest, max_replicas=most, **knobs)
    load = [(37.0 * number, rate) for number, rate in enumerate(rates)]
    steps = simulate_autoscaling(
        options, load, service_s=1.5, until_s=400, max_ongoing_requests=room, start_s=start_s
    )
    ends = [37.0 * (number + 1) for number in range(len(rates) - 1)] + [math.inf] * bool(rates)
    before: Step | None = None
    for step in steps:
        assert fewest <= step.replicas <= most
        assert 0 <= step.ready <= most
        assert step.queued >= 0
        assert step.ongoing >= 0
        assert step.queued == 0 or step.ongoing == pytest.approx(
            step.ready * room if step.ready else 0
        )
        if before is not None:
            came = sum(
                rate * max(0.0, min(step.at, end) - max(before.at, at))
                for (at, rate), end in zip(load, ends, strict=True)
            )
            growth = step.queued + step.ongoing - before.queued - before.ongoing
            assert growth <= came + 1e-6
        before = step


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"load": [(5, 1), (4, 1)]}, "the load goes back in time, from 5 to 4"),
        ({"load": [(0, -1)]}, "a rate must be at least 0, and finite, not -1"),
        ({"load": [(0, math.nan)]}, "a rate must be at least 0, and finite, not nan"),
        ({"service_s": 0}, "service_s must be above 0"),
        ({"max_ongoing_requests": 0}, "max_ongoing_requests above 0"),
    ],
)
def test_what_can_not_be_simulated_is_refused(changed: dict[str, Any], says: str) -> None:
    asked: dict[str, Any] = {"load": [(0, 1)], "service_s": 1, "until_s": 10} | changed
    with pytest.raises(ValueError) as refused:
        simulate_autoscaling(AutoscalingOptions(), **asked)
    assert says in str(refused.value)
