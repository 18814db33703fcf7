"""What a command prints, where it can't be written, or nobody reads it."""

import os
import subprocess
import sys

import pytest

from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

SIMULATE = ["simulate", "--rate", "100", "--run-time", "0.002+0.0001n", "--duration", "1"]


def run(words, output):
    """Runs a command; gives its exit code, and what it said beside."""
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(("words", "ends"), [(SIMULATE, 141), (["--help"], 0)])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(words, ends):
    readable, writable = os.pipe()
    os.close(readable)
    try:
        code, said = run(words, writable)
    finally:
        os.close(writable)
    assert (code, said) == (ends, "")


def test_output_that_can_not_be_written_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        code, said = run(SIMULATE, full)
    assert (code, said) == (1, "shoal: can't write the result: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_the_null_device(closed, tmp_path):
    (tmp_path / "seen.py").write_text(
        "import os, pathlib\n"
        "null = os.stat(os.devnull).st_rdev\n"
        "found = [os.fstat(n).st_rdev == null for n in range(3)]\n"
        "pathlib.Path('seen').write_text(str(found))\n"
    )
    shell = f"exec {sys.executable} -m shoal serve seen:app {closed}"
    command = ["sh", "-c", shell]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    ended = subprocess.run(command, cwd=tmp_path, timeout=HANG_S, check=False, **streams)
    assert ended.returncode == 2  # the module has no `app`
    expected = {">&-": [False, True, False], "2>&-": [False, False, True]}
    assert (tmp_path / "seen").read_text() == str(expected.get(closed, [True] * 3))
