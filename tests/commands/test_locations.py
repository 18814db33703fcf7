"""The locations of servers, the lock that allows one of each name, and how long `stop` waits."""

import errno
import fcntl
import os
import stat
from types import SimpleNamespace

import pytest

import shoal
from shoal.cli import main
from shoal.commands import named
from shoal.commands.server.client import ServerLocation, being_server
from shoal.commands.support.output import CommandError


@pytest.fixture
def location(tmp_path):
    return ServerLocation("one", tmp_path / "shoal")


def test_the_directory_is_the_sessions_own(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert ServerLocation("one").url == "unix:/run/user/7/shoal/one.sock"


def test_without_a_session_it_is_in_the_home_directory(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert str(ServerLocation("one").log) == "/home/me/.cache/shoal/one.log"


@pytest.fixture
def no_home(monkeypatch):
    """A user id without an account, as containers have, and no HOME."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.mark.parametrize(
    "command",
    [
        *("start", "start --detach", "stop", "status", "logs", "why", "trace"),
        *("backends list", "shadow show", "scale b 2", "call e 1"),
    ],
)
def test_without_a_home_directory_commands_name_the_variable_to_set(command, no_home, mistake):
    told = mistake(*command.split())
    assert f"user {os.getuid()} has no home directory; set XDG_RUNTIME_DIR" in told


@pytest.mark.parametrize("command", ["start --detach", "stop", "logs", "status"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOTDIR, errno.EIO])
def test_an_unreadable_directory_is_told_in_a_line(command, code, tmp_path, monkeypatch, mistake):
    def refuse(path, *_args, **_options):
        raise OSError(code, os.strerror(code), path)

    (tmp_path / "run").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    if code != errno.ENOTDIR:
        monkeypatch.setattr("os.open", refuse)
        monkeypatch.setattr("pathlib.Path.open", refuse)
    assert mistake(*command.split())


def test_without_a_home_directory_a_url_is_needed_and_enough(no_home, mistake):
    told = mistake("status", "--url", "http://127.0.0.1:1")
    assert "no server answers at http://127.0.0.1:1" in told
    with pytest.raises(ConnectionError, match="set XDG_RUNTIME_DIR"):
        shoal.connect()


def test_only_its_user_can_look_into_the_directory(location):
    location.directory.mkdir(mode=0o755)
    location.make_directory()
    assert stat.S_IMODE(location.directory.stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"can't use .*file/shoal for sockets.*XDG_RUNTIME_DIR"):
        ServerLocation("one", tmp_path / "file" / "shoal").make_directory()


def test_the_process_that_holds_a_name_is_known_as_long_as_it_does(location):
    assert location.holder() is None
    with being_server(location):
        assert location.holder() == os.getpid()
    assert location.holder() is None


def test_a_name_that_is_held_is_refused(location):
    with being_server(location), pytest.raises(CommandError) as mistake, being_server(location):
        pass
    assert f"runs already as process {os.getpid()}" in str(mistake.value)
    assert "`shoal status --name one`" in str(mistake.value)
    with being_server(location):
        pass


def test_what_a_killed_server_has_left_is_no_hindrance(location):
    location.make_directory()
    location.process.write_text("1\n")
    assert location.holder() is None
    with being_server(location):
        assert location.holder() == os.getpid()


def test_who_asks_whether_there_is_a_server_keeps_none_from_starting(location, monkeypatch):
    location.make_directory()
    location.process.write_text("")
    asking = location.process.open()
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda _: asking.close())
    with being_server(location):
        assert asking.closed


def test_asking_and_waiting_together_take_no_longer_than_allowed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    now = 100.0

    async def ask_to_end(location, timeout_s):
        nonlocal now
        now += timeout_s - 1
        raise TimeoutError("no answer")

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(named, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(named, "_ask_to_end", ask_to_end)
    with being_server(ServerLocation("default")):
        assert main(["stop", "--timeout", "5"]) == 1
    assert now == pytest.approx(105.0, abs=0.1)
    assert "no answer" in capsys.readouterr().err
