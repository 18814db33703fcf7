"""The log on stderr: what others chose can't forge its lines, or control a terminal."""

import json
import logging
import sys

import pytest

from shoal.commands.server.stderr import JsonFormatter, TextFormatter
from shoal.commands.support.output import print_out

FORGED = "2026-11-22 07:00:00,004 ERROR shoal.http: all is lost"
BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
CONTROLS = ["\x1b[2J", "\x9b2J", "\x07", "\x08", "\0", "\x7f", "\u202e", "\u2066"]


def record(message, error=None):
    made = logging.makeLogRecord({"msg": "%s", "args": (message,), "levelname": "ERROR"})
    if error is not None:
        try:
            raise ValueError(error)
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


@pytest.mark.parametrize("lines", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
@pytest.mark.parametrize("control", CONTROLS + BREAKS)
def test_no_control_character_is_written(control, lines):
    text = lines.format(record(f"a{control}b", f"c{control}d"))
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("line_break", BREAKS)
def test_what_is_logged_forges_no_line(line_break):
    text = TextFormatter().format(record(f"a{line_break}{FORGED}", f"b{line_break}{FORGED}"))
    first, *others = text.splitlines()
    assert others
    assert all(line.startswith("  ") for line in others)
    assert not first.startswith(FORGED)
    [_] = JsonFormatter().format(record(f"a{line_break}{FORGED}", FORGED)).splitlines()


def test_other_text_is_written_as_it_is():
    text = TextFormatter().format(record("café\t日本", "naïve"))
    assert "café\t日本\n  Traceback" in text
    assert text.endswith("\n  ValueError: naïve")


@pytest.mark.parametrize("control", CONTROLS)
def test_a_result_that_is_printed_controls_no_terminal(control, capsys):
    print_out(json.dumps({"a": f"b{control}"}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert out.rstrip("\n").isprintable()
    assert json.loads(out) == {"a": f"b{control}"}
