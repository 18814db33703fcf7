"""What a worker prints, however much that is."""

from __future__ import annotations

import logging
import os

import pytest

from shoal.replicas.process.worker import Output

logger = logging.getLogger("shoal.replicas")


@pytest.fixture
def pipe():
    """A pipe that a worker writes to: its output, and the end to write at."""
    readable, writable = os.pipe()
    with open(readable, "rb") as ours, open(writable, "wb", buffering=0) as theirs:
        yield Output(ours, logger, "a#0", 1000), theirs


def test_lines_are_kept_as_they_come(pipe):
    output, theirs = pipe
    theirs.write(b"one\r\ntwo\nhal")
    output.read_available()
    assert list(output.lines) == ["one", "two", "hal"]


def test_of_a_flood_of_lines_only_some_are_taken(pipe):
    output, theirs = pipe
    theirs.write(b"\n" * 2**16)
    output.read_available()
    assert len(output.lines) < 500
    assert output.lines[0].endswith("lines are left out: too much output)")
