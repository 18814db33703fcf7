"""The embedding examples are whole programs, and run as such: in the process of the tests."""

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "examples" / "embed"

EXPECTED = {
    "plain_trio": "one call for 7 words",
    "anyio_on_asyncio": "[0, 2, 4, 6, 8]",
    "method": "x3: one call for [",
    "stream": "5 -> [5, 4, 3, 2, 1, 0]",
    "threads": "121, 144, 169",
    "sqlite_writes": "refused: NOT NULL constraint failed",
}


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs_and_says_what_it_should(name, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    said = capfd.readouterr()
    assert EXPECTED[name] in said.out
    assert said.err == ""
