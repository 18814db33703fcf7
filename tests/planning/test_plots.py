"""Plots: that there is one, and what is said where there can't be."""

import sys

import pytest

from shoal.core.options.options import BatchOptions
from shoal.planning import Arrival, Linear, plot, simulate
from shoal.planning.recordings import MeasuredRunTimes
from shoal.planning.tuning import Search, plot_tuning

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n"
RUN_TIME = Linear(0.01, 0.001)
EXPIRED = [Arrival(0.0, timeout_s=0.001), Arrival(1.0)]


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
    plot_tuning(runs, search, search.candidates(lambda _line: None), path)
    assert path.read_bytes().startswith(b"<?xml")


def test_without_matplotlib_it_is_told_what_to_install(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    simulation = simulate([0], BatchOptions(), RUN_TIME)
    with pytest.raises(ImportError, match=r"a plot needs matplotlib.*: pip install 'shoal\[plot"):
        plot(simulation, tmp_path / "simulation.png")
