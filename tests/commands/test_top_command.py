"""``shoal top``: what it shows, once and live, and what ugly names do to a terminal."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
import time

import pytest
from driven_server import served

import shoal
from shoal.commands.top import ServerView, picture
from time_limits import HANG_S

UGLY = "[red]x[/] \x1b[2J\x9b2J\r\n\u202e<b>"


def sample(number=1, **more):
    one = {
        "finished": 120.0,
        "failed": 0.5,
        "left": 0,
        "refused": 2.0,
        "batches": 10.0,
        "size": 12.0,
        "wait_s": 0.002,
        "run_s": 0.03,
        "reasons": {"full": 7.5, "timer": 2.5},
        "p50": 0.01,
        "p95": 0.02,
        "p99": None,
        "queued": 7,
        "levels": {"1": 3, "2": 4},
        "running": 12,
        "limit": 16.0,
        "streams": 3,
        **more,
    }
    return {"number": number, "at": float(number), "all": one, "batchers": {"small": one}}


def state(name="small"):
    replica = {"name": f"{name}#0", "state": "ready", "running": 3, "batches": 1234}
    return {
        "backends": [
            {
                "name": name,
                "code": name,
                "placement": "process",
                "state": "degraded",
                "wanted": 2,
                "replicas": [{**replica, "memory_bytes": 80 * 2**20}],
                "queued": 7,
                "running": 3,
                "requests": 98765,
                "errors": 4,
                "deaths": 1,
                "restarts": 1,
                "failure": name,
            }
        ],
        "endpoints": [],
        "hidden": 3,
        "failures": [
            {"age_s": 4.2, "batcher": name, "batch": 1, "error": name, "count": 2, "ids": [name]}
        ],
    }


def message(number=1, run="a", name="small", **more):
    return {
        "run": run,
        "now": float(number),
        "lanes": [{"name": "small", "limit": 16, "open": False, "rows": [], "now": []}],
        "samples": [sample(number, **more)],
        "state": state(name),
    }


def drawn(view, width=160, height=None):
    return picture(view, "default", "live", width, height)


@pytest.fixture
def view():
    view = ServerView()
    view.take(message())
    return view


def row_of(text, head):
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(head))
    return dict(zip(lines[at].split(), lines[at + 1].split("  "), strict=False)), lines[at + 1]


def test_all_that_an_operator_asks_for_is_shown(view):
    text = drawn(view)
    assert "120 answered a second" in text
    assert "0.5 failed" in text
    assert "2 refused" in text
    assert "latency p50 10 ms  p95 20 ms  p99 -" in text
    assert "10 batches a second, of 12; 7 queued, 12 running, 3 streams open" in text
    assert "full 75%, timer 25%" in text
    assert "7 (1:3 2:4)" in text
    _, backend = row_of(text, "BACKEND")
    assert backend.split() == [
        *("small", "degraded", "1/2", "7", "3", "98,765", "4", "1", "1", "small")
    ]
    _, failure = row_of(text, "FAILED")
    assert failure.split() == ["4", "s", "ago", "small", "2", "small", "small"]
    assert "3 more are not shown" in text


def test_long_names_leave_what_matters_most_whole_in_few_columns():
    view = ServerView()
    long = message(name="n" * 60)
    (one,) = long["samples"][0]["batchers"].values()
    long["samples"][0]["batchers"] = {"n" * 60: {**one, "p99": 0.0987}}
    view.take(long)
    text = drawn(view, width=80, height=40)
    assert max(map(len, text.splitlines())) <= 80
    heads = next(line for line in text.splitlines() if line.startswith("BATCHER"))
    assert heads.split() == ["BATCHER", "REQ/S", "FAIL/S", "P50", "P99", "BATCH", "QUEUED", "WHY"]
    _, batcher = row_of(text, "BATCHER")
    assert batcher.split()[1:8] == ["120", "0.5", "10", "ms", "98.7", "ms", "12"]
    _, backend = row_of(text, "BACKEND")
    assert backend.split()[1:6] == ["degraded", "1/2", "7", "98,765", "4"]


@pytest.mark.parametrize(
    ("rows", "heads"), [(12, ["BATCHER"]), (24, ["BATCHER", "BACKEND", "FAILED"])]
)
def test_each_table_has_its_part_of_few_rows(rows, heads):
    view = ServerView()
    many = message()
    (one,) = many["samples"][0]["batchers"].values()
    many["samples"][0]["batchers"] = {f"b{number}": one for number in range(30)}
    many["state"]["backends"] *= 30
    many["state"]["failures"] *= 5
    view.take(many)
    lines = drawn(view, height=rows).splitlines()
    assert len(lines) == rows
    assert "120 answered a second" in lines[1]
    words = [line.split()[0] for line in lines if line[:1].isalpha()]
    assert [word for word in words if word.isupper()] == heads


def test_ugly_names_are_text_and_nothing_that_a_terminal_obeys():
    view = ServerView()
    ugly = message(name=UGLY)
    ugly["samples"][0]["batchers"] = {UGLY: sample(reasons={UGLY: 1.0})["all"]}
    ugly["samples"][0]["batchers"][UGLY]["levels"] = {UGLY: 1, "2": 2}
    view.take(ugly)
    text = drawn(view)
    assert text.count("[red]x[/] ") >= 6
    assert text.replace("\n", "").isprintable()
    assert "\n<b>" not in text


def test_no_line_is_cut_in_a_pipe(view):
    text = drawn(view, width=40)
    assert max(map(len, text.splitlines())) > 40
    assert max(map(len, drawn(view, width=40, height=30).splitlines())) == 40


def test_long_names_and_many_rows_are_short():
    view = ServerView()
    long = message(name="n" * 500)
    long["state"]["backends"] *= 100
    view.take(long)
    text = drawn(view)
    assert "n" * 40 not in text
    assert len(text.splitlines()) < 70


def test_another_server_at_the_same_address_is_another(view):
    view.take({**message(2), "samples": [], "state": None})
    assert "120 answered" in drawn(view)
    view.take({**message(1, run="b"), "samples": [], "state": None})
    assert "waiting for the server" in drawn(view)


@pytest.mark.real_time
@pytest.mark.usefixtures("traffic")
def test_it_is_printed_once_where_there_is_no_terminal(url, run):
    code, out, err = run("top", "--url", url)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    _, batcher = row_of(out, "BATCHER")
    assert batcher.split()[0] == "scale"
    assert float(batcher.split()[1].replace(",", "")) > 0
    _, backend = row_of(out, "BACKEND")
    assert backend.split()[:3] == ["scale", "ready", "1/1"]


@pytest.mark.real_time
@pytest.mark.usefixtures("traffic")
def test_programs_get_data(url, run):
    code, out, err = run("top", "--json", "--url", url)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["now"]["all"]["finished"] > 0
    assert told["backends"][0]["name"] == "scale"


@pytest.mark.real_time
def test_why_a_server_can_not_be_watched_is_told(run, tmp_path, monkeypatch):
    code, out, err = run("top", "--url", f"unix:{tmp_path}/none.sock", "--once")
    assert (code, out) == (1, "")
    assert "no server answers at" in err
    token = tmp_path / "token"
    token.write_text("wrong")
    # By default one may watch a server at a loopback address without a token.
    monkeypatch.setattr("driven_server.App", lambda: shoal.App(dashboard=False))
    with served(token="right") as url:
        code, out, err = run("top", "--url", url, "--token-file", str(token))
        assert (code, out) == (1, "")
        assert "token" in err
        token.write_text("right")
        assert run("top", "--url", url, "--token-file", str(token))[0] == 0


class Screen:
    """A terminal in which the command runs."""

    def __init__(self, terminal, **environment):
        self.shown = b""
        self._master, slave = pty.openpty()
        self.resize(30, 150)
        terminal.environment.update({"TERM": "xterm-256color", **environment})
        for name in ("COLUMNS", "LINES"):
            terminal.environment.pop(name, None)
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        self.process = terminal.popen("top", fresh=True, start_new_session=True, **streams)
        os.close(slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text, *, after=0):
        """Reads until something is shown; gives where it is."""
        give_up_at = time.monotonic() + HANG_S
        while text not in self.shown[after:]:
            assert time.monotonic() < give_up_at, self.shown[-2000:]
            assert self.read(), self.shown[-2000:]
        return self.shown.index(text, after)

    def read(self):
        """Reads what is shown within a moment; gives whether the command may show more."""
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self._master, 2**16)
            except OSError:  # the command has ended
                return False
        return True

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(HANG_S)
        while self.read():
            pass
        os.close(self._master)
        return code


@pytest.mark.real_time
@pytest.mark.slow
def test_it_is_live_follows_the_window_survives_a_restart_and_ends_cleanly(terminal):
    start = ("start", "--port", "0", "--allow-module", "driven_models")
    with terminal.serving(*start):
        terminal.told_here("backends", "create", "b", "driven_models:add_one")
        screen = Screen(terminal)
        screen.until(b"live")
        screen.until(b"REFUSED/S")
        before = len(screen.shown)
        screen.resize(30, 80)
        screen.until(b"BATCHER", after=before)
        at = screen.until(b"BACKEND", after=before)
        assert b"REFUSED/S" not in screen.shown[at:]
        terminal.told_here("stop")
        at = screen.until(b"not reachable", after=before)
        terminal.wait_until_ended()
    with terminal.serving(*start):
        screen.until(b"live", after=at)
        assert screen.end(signal.SIGINT) == 0
    # The cursor and what was on the terminal are there again.
    assert screen.shown.endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"Traceback" not in screen.shown


@pytest.mark.real_time
@pytest.mark.slow
def test_a_dumb_terminal_gets_it_once(terminal):
    with terminal.serving("start", "--port", "0"):
        screen = Screen(terminal, TERM="dumb")
        screen.until(b"no backends")
        assert screen.process.wait(HANG_S) == 0
        assert b"\x1b" not in screen.shown
