"""`shoal start`, `stop` and `status` as processes of their own, with real signals."""

import fcntl
import json
import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import ask, end_of, wait_until_refused

from shoal.commands.server.client import ServerLocation
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

APP = """\
[server]
port = 0

[backends.b]
code = "driven_models:Scaler"

[endpoints.e]
route = "/e"
backend = "b"
"""

HELD = """\
import shoal

app = shoal.App()


@app.endpoint("/held", max_batch_size=1, max_concurrent_batches=2)
def held(names: list[str]) -> list[str]:
    with open(f"{names[0]}.began", "w"):
        pass
    with open(names[0]) as told:
        return [told.read()]
"""

SLOW = """\
import time

with open("begun", "w"):
    pass
time.sleep(3600)
"""


@pytest.fixture
def directory(terminal):
    (terminal.directory / "app.toml").write_text(APP)
    (terminal.directory / "held.py").write_text(HELD)
    (terminal.directory / "slow.py").write_text(SLOW)
    return terminal.directory


def port_of(ready):
    return int(ready["url"].rpartition(":")[2])


@pytest.fixture
def start(terminal, directory):
    """Starts a detached server; gives what the command told."""

    def start(*arguments):
        return json.loads(terminal.told("start", "--detach", "--json", "--port", "0", *arguments))

    return start


def test_a_detached_server_runs_for_its_user_alone_until_it_is_stopped(start, terminal):
    ready = start("app.toml", "--name", "one")
    assert ask(port_of(ready), "/e", 4) == (200, 8)
    location = terminal.location("one")
    pid = location.holder()
    assert ready == {
        "url": ready["url"],
        "socket": str(location.socket),
        "log": str(location.log),
        "pid": pid,
    }
    assert f"Shoal serving app.toml on {ready['url']}\n" in location.log.read_text()
    assert os.getsid(pid) == pid
    assert stat.S_IMODE(location.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(location.log.stat().st_mode) == 0o600
    assert stat.S_IMODE(location.socket.parent.stat().st_mode) == 0o700
    status = json.loads(terminal.told("status", "--name", "one", "--json"))
    assert status["backends"]["b"]["state"] == "ready"
    assert terminal.told("stop", "--name", "one") == "stopped one\n"
    assert location.holder() is None
    assert not location.socket.exists()
    err = terminal.failed_here("status", "--name", "one")
    assert "one.sock; start one with `shoal start --detach" in err


def test_a_second_one_of_the_same_name_is_refused(terminal):
    with terminal.serving("start", "--port", "0") as (process, _):
        for arguments in (["--detach"], []):
            err = terminal.failed("start", "--port", "0", *arguments)
            assert f"a server named 'default' runs already as process {process.pid}" in err
            assert "`shoal status`, connect to it at unix:" in err
            assert err.count("\n") == 1
        told = terminal.told("start", "--detach", "--port", "0", "--name", "another")
        assert [line.split()[0] for line in told.splitlines()] == ["url", "socket", "log", "pid"]


def test_backends_are_created_from_modules_that_were_allowed(terminal):
    with terminal.serving("start", "--port", "0", "--allow-module", "driven_models"):
        terminal.told_here("backends", "create", "b", "driven_models:add_one", "placement=thread")
        terminal.told_here("endpoints", "create", "e", "--backend", "b")
        assert terminal.told_here("call", "e", "1") == "2\n"
        err = terminal.failed_here("backends", "create", "c", "json:dumps")
        assert "the operator did not allow imports from 'json' here" in err


def test_the_name_and_the_state_of_one_that_was_killed_are_there_for_the_next(terminal):
    command = ("start", "--port", "0", "--state", "file.db", "--allow-module", "driven_models")
    with terminal.serving(*command) as (process, _):
        terminal.told_here("backends", "create", "b", "driven_models:add_one")
        terminal.told_here("endpoints", "create", "e", "--route", "/e", "--backend", "b")
        process.kill()
        terminal.wait_until_ended()
    with terminal.serving(*command) as (_, port):
        assert ask(port, "/e", 4) == (200, 5)


def test_a_state_file_that_is_none_is_told(terminal, directory):
    (directory / "file.db").write_text("not a database" * 100)
    err = terminal.failed("start", "--detach", "--port", "0", "--state", "file.db")
    assert err.startswith("shoal: the state file ")
    assert err.count("\n") == 1


def test_one_that_does_not_start_shows_what_it_said_and_nothing_from_the_log_before(terminal):
    for name in ("first", "second"):
        err = terminal.failed("start", "--detach", f"{name}:app", code=2)
        assert err.startswith(f"shoal: '{name}:app': there is no module '{name}' in /")
        assert err.count("\n") == 1


def test_one_whose_import_fails_shows_the_traceback(terminal, directory):
    (directory / "broken.py").write_text("raise LookupError('bad day')")
    err = terminal.failed("start", "--detach", "broken:app")
    assert "LookupError: bad day" in err
    assert err.endswith("shoal: importing broken:app failed, see above\n")


def test_ctrl_c_while_it_starts_ends_it(terminal, directory):
    os.mkfifo(directory / "begun")
    process = terminal.popen("start", "--detach", "slow:app")
    with process:
        with open(directory / "begun") as begun:
            begun.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
    terminal.wait_until_ended()


def test_stopping_lets_what_is_under_way_finish(terminal, directory):
    os.mkfifo(directory / "a")
    os.mkfifo(directory / "a.began")
    with (
        terminal.serving("start", "held:app", "--port", "0") as (_, port),
        ThreadPoolExecutor() as threads,
    ):
        answer = threads.submit(ask, port, "/held", "a")
        (directory / "a.began").read_text()
        with terminal.popen("stop") as stopping:
            wait_until_refused(port)
            (directory / "a").write_text("held")
            assert answer.result() == (200, "held")
            assert stopping.wait(HANG_S) == 0


def test_one_that_does_not_answer_is_killed_by_force_alone(terminal):
    with terminal.serving("start", "--port", "0") as (process, _):
        process.send_signal(signal.SIGSTOP)
        err = terminal.failed_here("stop", "--timeout", "0.2")
        assert err.startswith("shoal: default is still running: ")
        assert err.endswith("; --force kills it\n")
        assert terminal.told_here("stop", "--timeout", "0.2", "--force") == "killed default\n"
        assert terminal.location().holder() is None


def test_to_stop_what_is_not_there_is_told(terminal):
    code, _, err = terminal.run_here("stop")
    assert (code, err) == (1, "shoal: no server named 'default' runs here\n")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_one_in_the_foreground_with_0(signum, terminal, directory):
    with terminal.serving("start", "app.toml") as (process, port):
        assert process.stderr.readline() == f"Commands reach it at {terminal.location().url}\n"
        assert ask(port, "/e", 1) == (200, 2)
        said = end_of(process, signum)
        assert " requests, drained in " in said
    assert terminal.location().holder() is None


FORKING = """\
import os

import shoal

if os.fork() == 0:
    open("release").read()
    os._exit(0)
app = shoal.App()
"""


def test_a_process_that_the_application_has_forked_holds_nothing_up(terminal, directory, start):
    (directory / "forking.py").write_text(FORKING)
    os.mkfifo(directory / "release")
    for _ in range(2):
        start("forking:app")
        assert terminal.told_here("stop") == "stopped default\n"
    (directory / "release").write_text("")  # both children go on


def test_one_that_is_starting_is_waited_for(monkeypatch, mistake):
    holders = iter([0, 0, None])
    monkeypatch.setattr(ServerLocation, "holder", lambda _: next(holders))
    assert "no server named 'default' runs here" in mistake("stop")


def test_one_that_has_not_said_which_process_it_is_is_not_killed(terminal):
    location = terminal.location()
    location.make_directory()
    with location.process.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # The number 0 would stand for the command's own process group.
        stopping = terminal.popen("stop", "--force", "--timeout", "0.2", start_new_session=True)
        assert "has not written its process id yet" in end_of(stopping, code=1)
