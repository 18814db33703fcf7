"""Hypercorn is subclassed deep inside: another minor version is looked at before it is used."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

TESTED = (0, 18)
RECHECK = """\
raise the cap in pyproject.toml and TESTED here once these were compared with the new version:
- shoal.http.server.protocols.Http1: _handle_events (who sends 100 Continue), stream_send,
  _create_stream, _send_error_response, _maybe_recycle, _check_protocol (no upgrade to h2c)
- Http2: stream_send, _handle_events, send_task and _send_data with their stream buffers
- _BoundedBuffer: drain, close, pop; who deletes a buffer, and when
- Context: which of a WorkerContext's members the protocols use
- WSStream: the states of a handshake, and that compression is negotiated from one header
- shoal.http.server.connection: what a protocol asks of its task group, and the events that it
  sends"""


def test_the_installed_hypercorn_is_the_tested_one():
    installed = tuple(int(part) for part in version("hypercorn").split(".")[:2])
    assert installed == TESTED, RECHECK


def test_no_other_is_installed_with_shoal():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    (wanted,) = {
        Requirement(line).specifier
        for lines in lists
        for line in lines
        if Requirement(line).name == "hypercorn"
    }
    major, minor = TESTED
    assert wanted.contains(f"{major}.{minor}.9")
    assert not wanted.contains(f"{major}.{minor + 1}.0")
