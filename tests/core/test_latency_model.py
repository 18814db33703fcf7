"""The model of run times: its estimates after given batches, without a clock."""

import math
import random
from collections.abc import Callable, Iterable
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.latency_model import LatencyModel

A_S, B_S = 0.0005, 0.02


def linear(size: float, pace: float = 1.0) -> float:
    return pace * (A_S * size + B_S)


def told(
    sizes: Iterable[float], seconds: Callable[[float], float], model: LatencyModel | None = None
) -> LatencyModel:
    """Reports batches to a model, and queries it after each."""
    model = LatencyModel() if model is None else model
    for size in sizes:
        model.observe(size, seconds(size))
        model.run_s(size)
    return model


def mixed(count: int, seed: int = 1, most: int = 64) -> list[float]:
    chance = random.Random(seed)
    return [chance.randint(1, most) for _ in range(count)]


def noisy(sigma: float, pace: float = 1.0, seed: int = 2) -> Callable[[float], float]:
    chance = random.Random(seed)
    return lambda size: linear(size, pace) * chance.lognormvariate(0, sigma)


def test_nothing_is_known_before_the_first_batch() -> None:
    model = LatencyModel()
    assert (
        model.run_s(1) is model.bound_s(1) is model.size_within(1) is model.median_s_of(1) is None
    )
    snapshot = model.snapshot()
    assert (snapshot.a_s, snapshot.b_s, snapshot.samples) == (0, 0, 0)
    assert model.largest() == model.samples() == 0


def test_two_sizes_are_enough_for_a_line_and_more_where_there_is_noise() -> None:
    model = told([1, 101], linear)
    assert model.snapshot().a_s == pytest.approx(A_S)
    assert model.snapshot().b_s == pytest.approx(B_S)
    assert model.run_s(51) == pytest.approx(linear(51))
    model = told(mixed(300), noisy(0.1))
    for size in (1, 8, 32, 64, 128):
        assert model.run_s(size) == pytest.approx(linear(size), rel=0.15)
    assert model.samples() == 300


def test_of_one_size_nothing_is_known_but_its_time_and_the_worst_is_bounded() -> None:
    model = told([8] * 100, lambda size: 0.1)
    assert model.run_s(1) == model.run_s(8) == model.run_s(80) == pytest.approx(0.1)
    assert model.bound_s(1) == model.bound_s(8) == pytest.approx(0.1)
    assert model.bound_s(80) == pytest.approx(1.0)
    assert model.size_within(0.2) == pytest.approx(16)
    assert model.size_within(0.09) == 0


def test_larger_batches_that_are_faster_do_not_make_a_negative_slope() -> None:
    model = told(mixed(100), lambda size: 0.1 / size)
    assert model.snapshot().a_s == 0
    assert model.snapshot().b_s > 0


def test_times_that_rise_faster_than_sizes_do_not_make_a_negative_rest() -> None:
    model = told(mixed(200), lambda size: 1e-4 * size**2)
    assert 0 <= model.snapshot().b_s < 1e-6
    told([40] * 11, lambda size: 1e-4 * size**2, model)
    assert model.run_s(40) == pytest.approx(0.16)


def test_a_cold_first_batch_is_forgotten_with_the_second() -> None:
    model = told([1], lambda size: 5.0)
    told([1], linear, model)
    assert model.run_s(1) == pytest.approx(linear(1))
    model = told([1], lambda size: 5.0)
    told([4, 9, 30], linear, model)
    assert model.run_s(64) == pytest.approx(linear(64), rel=0.2)


def test_a_pause_among_the_first_batches_is_no_other_pace() -> None:
    model = told([1, 2, 4, 8], linear)
    told([8], lambda size: 10 * linear(size), model)
    told([8, 4], linear, model)
    for size in (1, 2, 4, 8):
        assert model.run_s(size) == pytest.approx(linear(size))


def test_the_noise_of_few_batches_is_no_other_pace() -> None:
    errors: list[float] = []
    for seed in range(100):
        chance = random.Random(seed)
        sizes = [chance.choice([1, 2, 4, 8, 16, 32]) for _ in range(30)]
        model = told(sizes, noisy(0.3, seed=seed))
        errors += [abs(math.log((model.run_s(size) or 0) / linear(size))) for size in (1, 8, 64)]
    assert mean(errors) < 0.18


def test_pauses_that_are_rare_move_neither_the_line_nor_the_bound() -> None:
    chance = random.Random(3)
    times = noisy(0.02)
    model = LatencyModel()
    for number, size in enumerate(mixed(1000)):
        model.observe(size, times(size) + (chance.uniform(0.1, 2) if number % 97 == 0 else 0))
        if number > 200:
            assert model.run_s(32) == pytest.approx(linear(32), rel=0.05)
            assert model.bound_s(32) == pytest.approx(linear(32), rel=0.15)


def test_pauses_that_are_frequent_are_in_the_bound() -> None:
    model = LatencyModel()
    for number, size in enumerate(mixed(500)):
        model.observe(size, linear(size) * (3 if number % 20 == 0 else 1))
        model.run_s(size)
    assert model.run_s(32) == pytest.approx(linear(32))
    assert model.bound_s(32) == pytest.approx(3 * linear(32))


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("sizes", [mixed(3000), [32] * 3000], ids=["mixed", "one size"])
def test_the_bound_holds_for_about_ninety_nine_in_a_hundred(sigma, sizes):
    model, times = LatencyModel(), noisy(sigma)
    within: list[bool] = []
    times_the_usual: list[float] = []
    for number, size in enumerate(sizes):
        seconds = times(size)
        if number >= 100:
            bound_s = model.bound_s(size)
            assert bound_s is not None
            within.append(seconds <= bound_s)
            times_the_usual.append(bound_s / linear(size))
        model.observe(size, seconds)
    assert mean(within) == pytest.approx(0.99, abs=0.009)
    assert mean(times_the_usual) == pytest.approx(math.exp(2.326 * sigma), rel=0.1)


@pytest.mark.parametrize("pace", [2.0, 0.5])
@pytest.mark.parametrize("sizes", [mixed(20, seed=4), [30] * 20], ids=["mixed", "one size"])
def test_another_pace_is_believed_of_all_sizes_within_twenty_batches(pace, sizes):
    model = told(mixed(200), noisy(0.05))
    told(sizes, noisy(0.05, pace), model)
    for size in (1, 8, 32, 64, 128):
        assert model.run_s(size) == pytest.approx(linear(size, pace), rel=0.2)


def test_six_batches_are_enough_for_the_level_and_are_no_spread() -> None:
    model = told(mixed(200), linear)
    told([30] * 5, lambda size: linear(size, 2), model)
    assert model.run_s(30) == pytest.approx(linear(30))
    told([30], lambda size: linear(size, 2), model)
    assert model.run_s(30) == pytest.approx(linear(30, 2))
    told([30] * 34, lambda size: linear(size, 2), model)
    assert model.snapshot().spread == pytest.approx(1, abs=0.01)


def test_no_line_is_drawn_through_times_of_before_and_after() -> None:
    # Slower by half, so the batches become smaller: large ones took as long before.
    model = told([100, 90, 80] * 30, linear)
    told([20, 25, 30] * 3, linear, model)
    told([30, 25, 20] * 8, lambda size: linear(size, 2), model)
    assert model.snapshot().a_s == pytest.approx(2 * A_S, rel=0.1)
    assert model.snapshot().b_s == pytest.approx(2 * B_S, rel=0.1)


def test_sizes_that_were_never_run_are_not_taken_for_another_pace() -> None:
    model = told([1, 2] * 20, linear)
    told([60, 50] * 20, linear, model)
    assert model.run_s(1) == pytest.approx(linear(1))
    assert model.run_s(60) == pytest.approx(linear(60))


def test_a_step_in_the_times_is_not_taken_for_another_pace() -> None:
    def steps(size: float) -> float:
        return 0.02 if size <= 32 else 0.06

    model = told([10, 30, 50] * 20, steps)
    told([30] * 40, steps, model)
    told([50] * 6, steps, model)
    assert model.run_s(10) == pytest.approx(0.02, rel=0.01)
    assert model.run_s(50) == pytest.approx(0.06, rel=0.01)


def test_a_change_of_one_part_of_the_time_is_followed() -> None:
    model = told([1, 8, 64] * 20, linear)
    told([1, 8, 64] * 11, lambda size: 4 * A_S * size + B_S, model)
    assert model.snapshot().a_s == pytest.approx(4 * A_S, rel=0.1)
    assert model.snapshot().b_s == pytest.approx(B_S, rel=0.3)


def test_under_a_steady_load_other_sizes_are_not_forgotten() -> None:
    model = told(mixed(200), noisy(0.05))
    told([32] * 2000, noisy(0.05), model)
    for size in (1, 128):
        assert model.run_s(size) == pytest.approx(linear(size), rel=0.2)


def test_size_within_is_the_largest_whose_bound_is_or_any_where_size_does_not_matter() -> None:
    model = told(mixed(200), noisy(0.1))
    size = model.size_within(0.05)
    assert size is not None
    assert model.bound_s(size) == pytest.approx(0.05)
    assert model.size_within(0.001) == 0
    model = told(mixed(100), lambda size: 0.1)
    assert model.size_within(0.2) == math.inf
    assert model.size_within(0.05) == 0


def test_the_time_of_an_exact_size_is_the_median_of_its_last_batches() -> None:
    model = LatencyModel()
    for size, seconds in [(16, 0.3), (16, 0.1), (16, 0.2), (32, 0.5)]:
        model.observe(size, seconds)
    assert model.median_s_of(16) == 0.2
    assert model.median_s_of(32) == 0.5
    assert model.median_s_of(17) is None
    told([16] * 100, lambda size: 0.1, model)
    told([16] * 8, lambda size: 0.7, model)
    assert model.median_s_of(16) == 0.7


def test_the_time_of_an_exact_size_does_not_depend_on_other_sizes() -> None:
    near = told([96] * 20, linear, told([100] * 20, linear))
    assert near.median_s_of(100) == pytest.approx(linear(100))
    slower = told([8, 64] * 40, linear)
    told([64] * 40, lambda size: 10 * linear(size), slower)
    assert slower.median_s_of(8) == pytest.approx(linear(8))


def test_sizes_may_be_any_costs_and_those_of_no_cost_or_no_time_do_no_harm() -> None:
    chance = random.Random(5)
    model = told([chance.uniform(0.01, 5000) for _ in range(500)], lambda size: size * 1e-5 + 0.1)
    assert model.run_s(2500) == pytest.approx(0.125)
    model = told([0, 0, 3, 0], lambda size: 0.0)
    assert model.run_s(3) == pytest.approx(0, abs=1e-6)
    assert model.size_within(1) == math.inf
    model = told([0, 10] * 10, lambda size: 0.1 + size)
    assert model.run_s(5) == pytest.approx(5.1)


def test_memory_is_bounded() -> None:
    def held(model: LatencyModel) -> int:
        by_size = sum(map(len, model._sizes.values())) + len(model._sizes)
        by_class = sum(map(len, model._classes.values()))
        return by_size + by_class + len(model._unread) + len(model._ratios) + len(model._block)

    model = told((1.01**number for number in range(5000)), lambda size: 0.1)
    assert held(model) < 600
    for number in range(100_000):
        model.observe(number, 0.1)
    assert held(model) < 600
    assert model.run_s(1) is not None


TIMES = st.floats(0, 100) | st.just(0.0)
SIZES = st.integers(0, 200) | st.floats(1e-6, 1e4)


@given(batches=st.lists(st.tuples(SIZES, TIMES), min_size=1, max_size=80), every=st.integers(1, 9))
def test_whatever_batches_ran_the_line_is_sane(batches, every):
    model = LatencyModel()
    for number, (size, seconds) in enumerate(batches):
        model.observe(size, seconds)
        if number % every == 0:
            model.run_s(size)
    snapshot = model.snapshot()
    assert 0 <= snapshot.a_s < math.inf
    assert 0 <= snapshot.b_s < math.inf
    assert snapshot.spread >= 1
    runs = [model.run_s(size) for size in (0, 1, 10, 1000)]
    bounds = [model.bound_s(size) for size in (0, 1, 10, 1000)]
    assert runs == sorted(runs)  # type: ignore[type-var]
    assert bounds == sorted(bounds)  # type: ignore[type-var]
    for run_s, bound_s in zip(runs, bounds, strict=True):
        assert run_s is not None
        assert bound_s is not None
        assert 0 <= run_s <= bound_s < math.inf
    assert model.size_within(1) >= (model.size_within(0.5) or 0)  # type: ignore[operator]
