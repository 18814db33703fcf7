"""Run times as they are written on a command line."""

from __future__ import annotations

import pytest

from shoal.commands.support.mistake import CommandError
from shoal.commands.support.values import run_time
from shoal.core.simulation.results import Linear


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("0.002+0.00005n", Linear(0.002, 0.00005)),
        ("0.00005n+0.002", Linear(0.002, 0.00005)),
        ("2e-3 + 5e-5 n", Linear(0.002, 0.00005)),
        ("1e+1 + .5*n", Linear(10, 0.5)),
        ("0.1", Linear(0.1, 0)),
        ("0.1s", Linear(0.1, 0)),
        ("0.5n", Linear(0, 0.5)),
        ("n", Linear(0, 1)),
    ],
)
def test_what_is_written_is_read(text, model):
    assert run_time(text) == model


def test_jitter_goes_along():
    assert run_time("1", jitter=0.1, seed=2) == Linear(1, 0, jitter=0.1, seed=2)


@pytest.mark.parametrize("text", ["", "n+n", "1+2", "-1", "2ms", "0.1+", "n2", "1e999", "nan", "x"])
def test_anything_else_is_told_how_to_write_it(text):
    with pytest.raises(CommandError, match=r"written like 0\.002\+0\.00005n"):
        run_time(text)


def test_no_time_at_all_is_refused():
    with pytest.raises(CommandError, match="must take some time"):
        run_time("0+0n")
