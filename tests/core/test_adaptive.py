"""The adaptive rule: single decisions, and its effect on simulated traffic."""

import math
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import BatchOptions
from shoal.core.latency_model import LatencyModel
from shoal.core.options.records import LatencyTarget
from shoal.core.policies.adaptive import AdaptiveRule
from shoal.core.simulation import simulate
from shoal.core.simulation_results import ClosedLoop, Linear, Simulation

A_S, B_S = 0.0005, 0.02
PLANNED_S = 0.1
TARGET = LatencyTarget(p99_s=PLANNED_S, headroom=1.0)


def linear(size: float) -> float:
    return A_S * size + B_S


def model_of(
    seconds: Callable[[float], float] = linear, sizes: Iterable[float] = range(1, 129)
) -> LatencyModel:
    """Makes a model that knows run times exactly, so that its bounds equal its estimates."""
    model = LatencyModel()
    for size in sizes:
        model.observe(size, seconds(size))
        model.run_s(size)
    assert model.snapshot().spread == pytest.approx(1)
    return model


def rule_of(
    model: LatencyModel | None = None,
    *,
    target: LatencyTarget = TARGET,
    most: int = 128,
    slots: int = 1,
    gap_s: float | None = None,
) -> tuple[AdaptiveRule, float]:
    """Makes a rule after arrivals at equal gaps; returns it and the time of the last one."""
    rule = AdaptiveRule(target, model_of() if model is None else model, most, slots)
    now = 1000.0
    if gap_s is not None:
        for _ in range(100):
            now += gap_s
            rule.arrived(now)
    return rule, now


# The size


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_batch_grows_until_one_that_just_missed_it_would_be_late(slots: int) -> None:
    rule, _ = rule_of(slots=slots)
    assert (1 + 1 / slots) * linear(rule.limit()) == pytest.approx(PLANNED_S)


def test_sizes_grow_as_they_are_measured() -> None:
    model = LatencyModel()
    rule, now = rule_of(model, target=LatencyTarget(p99_s=10, growth=2))
    sizes: list[float] = []
    for _ in range(9):
        assert rule.dispatch_at(now, now - 0.01, now, 128) <= now
        size = min(128, int(rule.limit(128)))
        sizes.append(size)
        model.observe(size, linear(size))
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 128]


def test_a_batch_beyond_the_only_size_measured_is_no_larger_than_holds_at_worst() -> None:
    model = LatencyModel()
    model.observe(1, 0.02)
    rule, now = rule_of(model)
    rule.dispatch_at(now, now, now, 100)
    bound_s = model.bound_s(rule.limit(100))
    assert bound_s == pytest.approx(PLANNED_S)


def test_what_waits_goes_at_once_if_its_run_is_in_time() -> None:
    rule, now = rule_of()
    assert rule.limit() < 100
    assert rule.dispatch_at(now, now - 0.09, now, 100) <= now
    assert rule.limit(100) >= 100


def test_of_a_queue_that_is_too_long_as_much_goes_as_saves_the_first() -> None:
    rule, now = rule_of(model_of(sizes=range(1, 513)), most=512)
    rule.dispatch_at(now, now, now, 400)
    assert linear(rule.limit(400)) == pytest.approx(PLANNED_S)
    rule.dispatch_at(now, now - 0.03, now, 400)
    assert 0.03 + linear(rule.limit(400)) == pytest.approx(PLANNED_S)


def test_those_who_cannot_be_saved_are_not_kept_waiting_for_small_batches() -> None:
    rule, now = rule_of(model_of(sizes=range(1, 513)), most=512)
    rule.dispatch_at(now, now - 0.075, now, 400)
    assert rule.limit(400) == 512


def test_a_target_that_no_batch_can_hold_gives_the_largest_batches() -> None:
    rule, now = rule_of(target=LatencyTarget(p99_s=0.001))
    assert rule.limit() == 1
    assert rule.dispatch_at(now, now, now, 50) <= now
    assert rule.limit(50) == 128


# The wait


@pytest.mark.parametrize("waiting", [1, 2, 10, 30])
@pytest.mark.parametrize("slots", [1, 2])
def test_a_batch_waits_for_more_while_that_saves_more_than_the_wait_costs(waiting, slots):
    # What a new request saves by not waiting for a slot, less what it adds to the run of all.
    saved = linear(waiting) / slots - waiting * A_S - waiting * A_S
    worth_s = saved / (waiting + 1)
    if slots == 1:
        assert worth_s == pytest.approx((B_S - waiting * A_S) / (waiting + 1))
    rule, now = rule_of(slots=slots, gap_s=max(1e-6, worth_s * 0.95))
    assert (rule.dispatch_at(now, now, now, waiting) > now) == (worth_s > 0)
    rule, now = rule_of(slots=slots, gap_s=max(1e-6, worth_s * 1.05))
    assert rule.dispatch_at(now, now, now, waiting) <= now


def test_every_arrival_extends_the_wait_until_it_is_not_worth_it() -> None:
    rule, now = rule_of(gap_s=0.001)
    oldest, waiting = now, 1
    while (dispatch_at := rule.dispatch_at(now, oldest, now, waiting)) > now:
        assert dispatch_at - now == pytest.approx(0.002)
        now += 0.001
        rule.arrived(now)
        waiting += 1
    # the least whole n for which (b - n * a) / (n + 1) is below the gap
    assert waiting == math.ceil((B_S - 0.001) / (A_S + 0.001))


def test_what_has_passed_says_which_gap_it_is() -> None:
    rule, now = rule_of()
    for number in range(65):
        now += 0.03 if number % 16 == 0 else 0.0002
        rule.arrived(now)
    # While the gap may be a short one, the rule does not wait for a long one; later it does.
    assert rule.dispatch_at(now, now, now, 1) - now == pytest.approx(0.0004)
    assert rule.dispatch_at(now + 0.048, now, now, 1) - now == pytest.approx(0.06)
    assert rule.dispatch_at(now + 0.048, now, now, 30) <= now + 0.048


def test_callers_that_come_again_when_a_batch_ends_are_waited_for() -> None:
    # Two callers take turns: one's request waits while the other's runs.
    model = model_of()
    rule, now = rule_of(model)
    rule.arrived(now)
    waits: list[bool] = []
    for _ in range(100):
        arrived_at = now
        now += linear(1)
        model.observe(1, linear(1))
        waits.append(rule.dispatch_at(now, arrived_at, arrived_at, 1) > now)
        now += 0.0005  # the other one has its result, and calls again
        rule.arrived(now)
    assert not waits[0]
    assert all(waits[10:])


def test_costs_are_no_requests() -> None:
    # Items of cost 10; what counts is the number of waiting requests, not their cost.
    model = model_of(sizes=range(10, 1290, 10))
    worth_s = (B_S - 3 * 10 * A_S) / (3 + 1)
    rule, now = rule_of(model, most=1280, gap_s=worth_s * 0.95)
    assert rule.dispatch_at(now, now, now, 30, requests=3) > now
    assert rule.dispatch_at(now, now, now, 30) <= now
    rule, now = rule_of(model, most=1280, gap_s=worth_s * 1.05)
    assert rule.dispatch_at(now, now, now, 30, requests=3) <= now


times = st.floats(0, 0.3)


@given(
    gaps=st.lists(st.floats(0, 0.1), max_size=70),
    waited_s=times,
    since_newest_s=times,
    waiting=st.integers(1, 300),
    runs=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 0.5)), max_size=40),
    slots=st.integers(1, 4),
)
def test_whatever_came_sizes_are_allowed_and_no_wait_passes_the_plan(
    gaps: list[float],
    waited_s: float,
    since_newest_s: float,
    waiting: int,
    runs: list[tuple[int, float]],
    slots: int,
) -> None:
    model = LatencyModel()
    rule = AdaptiveRule(TARGET, model, 128, slots)
    now = 50.0
    for gap in gaps:
        now += gap
        rule.arrived(now)
    for size, seconds in runs:
        model.observe(size, seconds)
    oldest, newest = now - waited_s, now - min(waited_s, since_newest_s)
    dispatch_at = rule.dispatch_at(now, oldest, newest, waiting)
    assert 1 <= rule.limit() <= 128
    assert 1 <= rule.limit(waiting) <= 128
    bound_s = model.bound_s(waiting)
    if dispatch_at > now:
        assert bound_s is not None
        assert (
            now + bound_s > oldest + PLANNED_S or dispatch_at + bound_s <= oldest + PLANNED_S + 1e-9
        )
        assert dispatch_at - now <= 2 * max(gaps) + 1e-9
    # the result holds: asked again at that time it is the same, or to dispatch
    assert rule.dispatch_at(max(now, dispatch_at), oldest, newest, waiting) <= max(now, dispatch_at)


# Traffic

HANDLER = Linear(B_S, A_S, jitter=0.05, seed=7)


def adaptive(trace: Any, p99_s: float, handler: Any = HANDLER, **options: Any) -> Simulation:
    target = LatencyTarget(p99_s=p99_s)
    return simulate(trace, BatchOptions.of(MOST | options | {"adaptive": target}), handler)


def fixed(trace: Any, wait_s: float, handler: Any = HANDLER, **options: Any) -> Simulation:
    wait = {"batch_wait_timeout_s": wait_s, "regather": False}
    return simulate(trace, BatchOptions.of(MOST | options | wait), handler)


MOST = {"max_batch_size": 128}


def p99_s(found: Simulation) -> float:
    """The p99 latency, without the first tenth, while batch sizes still grew."""
    settled = sorted(found.latency_s[len(found.latency_s) // 10 :])
    return settled[int(len(settled) * 0.99)]


def share_within(found: Simulation, seconds: float) -> float:
    return sum(latency_s <= seconds for latency_s in found.latency_s) / len(found.latency_s)


def callers(count: int) -> ClosedLoop:
    return ClosedLoop(count, 0.001, 20, jitter=0.5, seed=7)


def traffic(rate: Callable[[float], float], most: float, seconds: float = 20) -> list[float]:
    """Draws arrivals at a rate that changes with time, by thinning a Poisson process."""
    chance = random.Random(11)
    now, arrivals = 0.0, list[float]()
    while (now := now + chance.expovariate(most)) < seconds:
        if chance.random() * most < rate(now):
            arrivals.append(now)
    return arrivals


@pytest.mark.parametrize(
    ("trace", "target_s", "waits_s"),
    [
        pytest.param(traffic(lambda now: 500, 500), 0.065, (0.04, 0.05), id="poisson"),
        pytest.param(
            traffic(lambda now: 1500 if now % 1 < 0.05 else 20, 1500), 0.1, (0.05,), id="bursty"
        ),
        pytest.param(
            traffic(lambda now: 300 * (1 - math.cos(2 * math.pi * now / 10)), 600),
            *(0.065, (0.04, 0.05)),
            id="diurnal",
        ),
        pytest.param(callers(8), 0.036, (0.0, 0.01, 0.03), id="callers in loops"),
        pytest.param(callers(2), 0.03, (0.0, 0.01, 0.03), id="two callers in loops"),
        pytest.param(callers(4), 0.033, (0.0, 0.01, 0.03), id="four callers in loops"),
        pytest.param(callers(1), 0.03, (0.01, 0.03), id="a caller in a loop"),
    ],
)
def test_the_target_is_held_where_a_fixed_wait_misses_it(trace, target_s, waits_s):
    assert p99_s(adaptive(trace, target_s)) <= target_s
    for wait_s in waits_s:
        assert p99_s(fixed(trace, wait_s)) > target_s


class SlowerForATime:
    def sampler(self) -> Callable[[float], float]:
        usual, runs = HANDLER.sampler(), count()
        return lambda size: usual(size) * (1.9 if 200 < next(runs) < 400 else 1)


def test_the_target_is_held_while_the_handler_is_slower_for_a_time() -> None:
    trace = traffic(lambda now: 200, 200)
    slower = SlowerForATime()
    assert p99_s(adaptive(trace, 0.12, slower)) <= 0.12
    assert p99_s(fixed(trace, 0.07)) < 0.12 < p99_s(fixed(trace, 0.07, slower))


def test_the_target_is_held_on_several_slots_where_taking_all_misses_it() -> None:
    handler = Linear(0.04, 0.002, jitter=0.05, seed=7)
    trace = traffic(lambda now: 1000, 1000)
    assert p99_s(adaptive(trace, 0.2, handler, max_concurrent_batches=4)) <= 0.2
    assert p99_s(fixed(trace, 0.0, handler, max_concurrent_batches=4)) > 0.2


def test_a_burst_that_is_too_large_is_not_all_late() -> None:
    # Once a second 250 at once: a batch of all of them takes longer than the target.
    trace = [float(second) for second in range(20) for _ in range(250)]
    assert share_within(adaptive(trace, 0.12, max_batch_size=1024), 0.12) > 0.5
    assert share_within(fixed(trace, 0, max_batch_size=1024), 0.12) < 0.01


def test_a_load_that_is_too_high_for_the_target_does_not_make_the_queue_grow() -> None:
    # Batches of the size that the target is planned with could take 950 a second.
    trace = traffic(lambda now: 1300, 1300)
    ours, all_at_once = adaptive(trace, 0.1), fixed(trace, 0.0)
    assert max(ours.latency_s) < 1.5 * max(all_at_once.latency_s)
    assert p99_s(ours) < 1.1 * p99_s(all_at_once)


def test_a_lone_caller_pays_nothing() -> None:
    ours, at_once = adaptive(callers(1), 0.1), fixed(callers(1), 0.0)
    assert ours.latency_s == at_once.latency_s
