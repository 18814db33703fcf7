"""`shoal logs`: the log of a detached server, and of its replicas' processes."""

import fcntl
import json
import os
import threading

import pytest

from shoal.cli import main
from shoal.commands.server.client import ServerLocation
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

LOG = """\
Shoal serving default on http://127.0.0.1:1
2026-11-22 07:00:00,000 INFO shoal.replicas: small#0: loaded
2026-11-22 07:00:00,001 INFO shoal.replicas: small#1: loaded
2026-11-22 07:00:00,002 INFO shoal.replicas: smaller#0: small#0: is what it says
2026-11-22 07:00:00,003 WARNING shoal.serving: small: max_batch_size is hardly meant
2026-11-22 07:00:00,004 ERROR shoal.http: e: request 1 failed
"""


@pytest.fixture
def location(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    location = ServerLocation("default")
    location.make_directory()
    return location


def shown(capsys, *arguments, said=""):
    assert main(["logs", *arguments]) == 0
    told = capsys.readouterr()
    assert told.err == said
    return told.out.splitlines()


def test_the_last_lines_are_shown(location, capsys):
    location.log.write_text(LOG)
    assert shown(capsys) == LOG.splitlines()
    assert shown(capsys, "--lines", "2") == LOG.splitlines()[-2:]


@pytest.mark.parametrize(
    ("tag", "lines"), [("small", [1, 2, 4]), ("small#0", [1]), ("smaller", [3]), ("other", [])]
)
def test_the_lines_about_a_backend_or_a_replica_are_shown(tag, lines, location, capsys):
    location.log.write_text(LOG)
    said = "" if lines else f"the log has no line about {tag!r} yet\n"
    assert shown(capsys, tag, said=said) == [LOG.splitlines()[line] for line in lines]


def test_what_user_code_writes_is_neither_about_a_backend_nor_controls_a_terminal(location, capsys):
    forged = "  2026-11-22 07:00:00,000 ERROR shoal.replicas: small: forged\n"
    location.log.write_text(f"{forged}a\x1b[2Jb\u2028c\n", encoding="utf-8")
    assert shown(capsys)[1:] == [r"a\u001b[2Jb\u2028c"]
    assert shown(capsys, "small", said="the log has no line about 'small' yet\n") == []


def test_a_line_without_an_end_is_shown_as_well(location, capsys):
    location.log.write_bytes(b"whole\nhalf \xff")
    assert shown(capsys) == ["whole", "half \ufffd"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "start it with `shoal start --detach`"),
        (["--name", "x"], "start it with `shoal start --detach --name x`"),
    ],
)
def test_a_log_that_is_not_there_is_told_with_how_to_get_one(arguments, line, location, mistake):
    assert line in mistake("logs", *arguments)


def test_a_server_in_the_foreground_is_said_to_have_none(location, mistake):
    with location.process.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "or not with --detach" in mistake("logs")


def test_a_log_is_followed_until_the_server_ends(location, capsys):
    location.log.write_text("first\nhal")
    with location.process.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        following = threading.Thread(target=main, args=(["logs", "--follow"],))
        following.start()
        with location.log.open("a") as log:
            log.write("f\nlast\n")
        os.truncate(location.log, 0)
        with location.log.open("a") as log:
            log.write("anew\n")
    following.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "anew"


def test_what_a_replicas_process_prints_is_in_the_log(terminal):
    (terminal.directory / "printing.py").write_text(
        "print('loaded in a process', flush=True)\ndef code(item: int): return item\n"
    )
    terminal.told("start", "--detach", "--port", "0", "--allow-module", "printing")
    terminal.told_here("backends", "create", "b", "printing:code", "placement=process")
    status = json.loads(terminal.told_here("status", "--json"))
    tag = status["backends"]["b"]["replicas"][0]["tag"]
    following = terminal.popen("logs", tag, "--follow")
    try:
        assert following.stdout.readline().endswith(f"{tag}: loaded in a process\n")
        terminal.told_here("stop")
        assert following.wait(timeout=HANG_S) == 0
    finally:
        following.kill()
        following.communicate()
    assert ", drained in " in terminal.told_here("logs")
