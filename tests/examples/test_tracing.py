"""The tracing example is a whole program, and runs as such."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_the_example_prints_the_spans_of_a_batch_and_of_its_callers():
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.tracing.console"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.partition(": ") for line in ended.stdout.splitlines()]
    assert sorted(name for name, _, _ in lines) == [
        *("first", "lengths", "lengths", "lengths", "lengths batch", "second"),
        *("the model", "third"),
    ]
    assert ("lengths batch", ": ", "3 links") in lines
    for name, _, said in lines:
        if name == "lengths":
            assert said.startswith("queue at 0 ms, wait at 0 ms, run at ")
            assert said.endswith(" ms, 1 links")
