"""The search for options: what meets a target, what is best, and why nothing does."""

import json
import sys
from functools import cache

import pytest

from shoal.commands.tune import tuned_as_data, tuned_as_text
from shoal.core.options.options import BatchOptions
from shoal.planning import Arrival, Linear, plot, simulate
from shoal.planning.recordings import MeasuredRunTimes
from shoal.planning.tuning import Search, plot_tuning
from test_docs import ROOT, run_page

pytestmark = pytest.mark.slow

# 10 ms and 1 ms an item.
RUNS = MeasuredRunTimes({size: [0.01 + 0.001 * size] * 5 for size in (1, 4, 16)}, 0.01, 0.001)
# The plan for one million requests a second: its code prints what the page says
PAGE = ROOT / "docs" / "discussion" / "scale.md"
# The same time for each item, whatever the batch; and a time that varies a little.
LINEAR = MeasuredRunTimes({size: [0.01 * size] * 5 for size in (1, 4)}, 0.0, 0.01)
NOISY = MeasuredRunTimes(
    {size: [0.01 * size * factor for factor in (0.97, 1.0, 1.0, 1.02, 1.05)] for size in (1, 4)},
    0.0,
    0.01,
)
# A batch takes longer than its items one by one.
SLOWER = MeasuredRunTimes({size: [0.01 * size**1.2] * 5 for size in (1, 4)}, 0.0, 0.01)
PNG = b"\x89PNG\r\n"
RUN_TIME = Linear(0.01, 0.001)
EXPIRED = [Arrival(0.0, timeout_s=0.001), Arrival(1.0)]


def search(rate, p99_s, **options):
    return Search(BatchOptions(**options), RUNS, rate, p99_s, requests=200)


@cache  # many tests look at the same search, which takes half a second
def searched(rate, p99_s, **options):
    said = []
    return search(rate, p99_s, **options).candidates(said.append), said


def found(rate, p99_s, **options):
    candidates, _ = searched(rate, p99_s, **options)
    return candidates


def text_of(rate, p99_s, **options):
    return tuned_as_text(search(rate, p99_s, **options), found(rate, p99_s, **options))


def test_every_size_is_tried_with_every_wait_that_makes_sense():
    pairs = {(one.max_batch_size, one.batch_wait_timeout_s) for one in found(100, 0.08)}
    waits = {0.0, 0.01, 0.02, 0.04}
    assert pairs == {(1, 0.0)} | {(size, wait) for size in (4, 16) for wait in waits}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_concurrent_batches": None}, "give a number to tune for"),
        ({"allowed_batch_sizes": (5, 10)}, "max_batch_size"),
    ],
)
def test_options_that_do_not_go_with_it_are_told(options, says):
    with pytest.raises(ValueError, match=says):
        found(100, 0.08, **options)


def test_those_that_meet_the_target_come_first():
    candidates = found(300, 0.08)
    meets = [one.meets_target for one in candidates]
    assert meets == sorted(meets, reverse=True)
    assert set(meets) == {True, False}
    assert all((one.p99_s <= 0.08) == one.meets_target for one in candidates)


def test_the_best_meets_the_target_up_to_the_highest_rate():
    candidates = found(100, 0.08)
    rates = [float(f"{one.up_to_rate:.2g}") for one in candidates if one.meets_target]
    assert rates == sorted(rates, reverse=True)
    best = candidates[0]
    assert (best.max_batch_size, best.batch_wait_timeout_s) == (16, 0.0)
    assert best.up_to_rate == pytest.approx(16 / RUNS(16), rel=0.1)


def test_a_rate_that_is_found_is_one_at_which_the_target_is_met():
    best = found(100, 0.08)[0]
    at_that_rate = {
        (one.max_batch_size, one.batch_wait_timeout_s): one for one in found(best.up_to_rate, 0.08)
    }
    assert at_that_rate[best.max_batch_size, best.batch_wait_timeout_s].meets_target


def test_requests_that_are_refused_miss_the_target():
    assert any(one.meets_target for one in found(300, 0.08, max_queued_requests=1000))
    assert not any(one.meets_target for one in found(3000, 0.08, max_queued_requests=10))


def test_slots_make_for_more():
    one, two = found(100, 0.08)[0], found(100, 0.08, max_concurrent_batches=2)[0]
    assert two.up_to_rate > 1.5 * one.up_to_rate


def test_what_was_found_is_told_in_a_table_and_as_data():
    text = text_of(100, 0.08)
    assert "fitted: 10 ms a batch + 1 ms an item" in text
    assert "100 requests a second, 99% of them within 80 ms:" in text
    assert "Best: max_batch_size=16, batch_wait_timeout_s=0.0\n" in text
    looked = search(100, 0.08)
    candidates = found(100, 0.08)
    data = json.loads(json.dumps(tuned_as_data(looked, candidates)))
    assert data["run_time"]["runs_s"]["4"] == [0.014] * 5
    assert len(data["candidates"]) == len(candidates)
    assert data["candidates"][0]["meets_target"] is True
    # A wait is recommended for a handler that it makes less busy.
    assert "If others share the device: max_batch_size=16, batch_wait" in text
    assert "Batching does not help" not in text
    assert searched(100, 0.08)[1] == ["simulated 7 of 9 pairs of options"]


@pytest.mark.parametrize(
    ("rate", "p99_s", "why"),
    [
        (10, 0.005, "The handler takes 11 ms for an item, which no option can shorten."),
        (3000, 0.08, "It processes at most 615 items a second: 5 are needed."),
        (100, 0.0111, "Nearest: max_batch_size="),
    ],
)
def test_where_nothing_meets_the_target_the_reason_is_told(rate, p99_s, why):
    text = text_of(rate, p99_s)
    assert "none of 9 pairs of options meets this target" in text
    assert why in text


@pytest.mark.parametrize(("run_times", "rate"), [(LINEAR, 10), (NOISY, 60), (SLOWER, 60)])
def test_neither_a_wait_nor_a_batch_that_brings_nothing_is_recommended(run_times, rate):
    looked = Search(BatchOptions(), run_times, rate, 0.5, requests=200)
    candidates = looked.candidates(lambda _: None)
    best = candidates[0]
    assert (best.max_batch_size, best.batch_wait_timeout_s) == (1, 0.0)
    text = tuned_as_text(looked, candidates)
    assert "Batching does not help this handler: it processes " in text
    assert "items a second in batches, and 100 one at a time. Set max_batch_size=1" in text
    assert "If others share the device" not in text
    assert tuned_as_data(looked, candidates)["batching_helps"] is False


def test_nothing_is_told_of_batches_that_were_not_measured():
    alone = MeasuredRunTimes({1: [0.01] * 5}, 0.01, 0.0)
    looked = Search(BatchOptions(), alone, 10, 0.5, requests=100)
    candidates = looked.candidates(lambda _: None)
    assert "Batching does not help" not in tuned_as_text(looked, candidates)
    assert tuned_as_data(looked, candidates)["batching_helps"] is True


def test_that_batching_does_not_help_is_told_where_nothing_meets_the_target_too():
    looked = Search(BatchOptions(), LINEAR, 300, 0.5, requests=200)
    text = tuned_as_text(looked, looked.candidates(lambda _: None))
    assert "3 are needed" in text
    assert "Batching does not help this handler" in text


@pytest.mark.parametrize(
    ("trace", "name", "begins"),
    [([0.0], "simulation.png", PNG), (EXPIRED, "simulation.svg", b"<?xml")],
)
def test_a_simulation_is_drawn_as_the_ending_of_its_file_says(trace, name, begins, tmp_path):
    simulation = simulate(trace, BatchOptions(max_batch_size=4), RUN_TIME)
    plot(simulation, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize("rate", [100, 100_000])
def test_a_search_is_drawn_whether_it_found_something_or_not(rate, tmp_path):
    runs = MeasuredRunTimes({1: [0.011, 0.012], 4: [0.014]}, 0.01, 0.001)
    search = Search(BatchOptions(), runs, rate, 0.05, requests=50)
    path = tmp_path / "search.svg"
    plot_tuning(search, search.candidates(lambda _line: None), path)
    assert path.read_bytes().startswith(b"<?xml")


def test_without_matplotlib_it_is_told_what_to_install(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    simulation = simulate([0], BatchOptions(), RUN_TIME)
    with pytest.raises(ImportError, match=r"a plot needs matplotlib.*: pip install 'shoal\[plot"):
        plot(simulation, tmp_path / "simulation.png")


def test_the_page_on_scale_does_what_it_says(monkeypatch):
    run_page(str(PAGE), PAGE.read_text(encoding="utf-8"), monkeypatch)
