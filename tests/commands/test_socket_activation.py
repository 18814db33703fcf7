"""`shoal serve` at sockets that systemd has opened. Its own tool: tests/examples/test_deploy.py."""

import json
import os
import signal
import socket
import sys
from contextlib import ExitStack, contextmanager

import pytest
from processes import ask, end_of, killed_late

from progress_lines import first_line
from shoal.server.listeners import PassedSockets, passed_sockets
from time_limits import HANG_S

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="others have no systemd"),
]

APP = """\
import os
import subprocess
import sys

import shoal

LEFT = sorted(name for name in os.environ if name.startswith("LISTEN_"))
SEEN_BY_A_CHILD = subprocess.run(
    [sys.executable, "-c", "import os, stat; exit(not stat.S_ISSOCK(os.fstat(3).st_mode))"],
    close_fds=False,
    stderr=subprocess.DEVNULL,
).returncode == 0
app = shoal.App()


@app.endpoint("/embed")
def embed(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@app.endpoint("/seen")
def seen(items: list[int]) -> list[object]:
    return [{"left": LEFT, "child": SEEN_BY_A_CHILD} for _ in items]


async def plain(scope, receive, send):
    pass
"""
WRONG = {
    "datagram": "is not a stream socket; write ListenStream= in its unit",
    "file": "is not a socket: ",
    "connection": "does not listen; write Accept=no in its unit",
    "tcp admin": "would open the admin API to everyone on this machine; ",
    "open admin": "would open the admin API to everyone on this machine; ",
    "abstract admin": "would open the admin API to everyone on this machine; ",
}


@pytest.fixture
def passing(terminal):
    """Starts `shoal` with sockets and their names, as systemd does."""
    (terminal.directory / "lengths.py").write_text(APP)

    @contextmanager
    def passing(sockets, names, *arguments):
        process = terminal.popen(*arguments, passed=sockets, names=names)
        with killed_late(process):
            yield process

    return passing


def listening():
    return socket.create_server(("127.0.0.1", 0))


def listening_at(path, mode=0o600):
    opened = socket.socket(socket.AF_UNIX)
    opened.bind(str(path))
    opened.listen()
    path.chmod(mode)
    return opened


def port_of(opened):
    return opened.getsockname()[1]


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_client_that_comes_before_the_start_or_between_two_servers_is_answered(passing, loop):
    with listening() as passed:
        for _ in range(2):
            with socket.create_connection(passed.getsockname(), timeout=HANG_S) as early:
                early.sendall(b"GET /-/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                with passing([passed], "http", "serve", "lengths:app", "--event-loop", loop) as run:
                    assert early.recv(12) == b"HTTP/1.1 200"
                    assert ask(port_of(passed), "/embed", "eel") == (200, 3)
                    end_of(run, signal.SIGTERM)


def test_each_socket_serves_the_application_but_that_named_admin(passing, terminal, tmp_path):
    path = tmp_path / "admin.sock"
    with listening() as first, listening_at(path) as admin, listening() as second:
        sockets = [first, admin, second]
        with passing(sockets, "http:admin:also", "serve", "lengths:app") as run:
            assert first_line(run.stderr).endswith(f":{port_of(first)}\n")
            assert run.stderr.readline().endswith(f":{port_of(second)}\n")
            for passed in (first, second):
                assert ask(port_of(passed), "/embed", "eel") == (200, 3)
                assert ask(port_of(passed), "/-/api/status")[0] == 404
            told = terminal.told_here("status", "--url", f"unix:{path}", "--json")
            assert "embed" in json.loads(told)["endpoints"]
            end_of(run, signal.SIGTERM)
        assert path.exists(), "the file is systemd's"


def test_no_child_process_takes_the_sockets_for_its_own(passing):
    with listening() as passed, passing([passed], "http", "serve", "lengths:app"):
        assert ask(port_of(passed), "/seen", 0) == (200, {"left": [], "child": False})


def test_a_passed_socket_goes_before_the_address_in_a_file(passing, tmp_path):
    (tmp_path / "app.toml").write_text(
        '[server]\nuds = "/nowhere/x.sock"\n[backends.b]\ncode = "lengths:embed"\n'
        '[endpoints.e]\nroute = "/embed"\nbackend = "b"\n'
    )
    with listening() as passed, passing([passed], "http", "serve", "app.toml"):
        assert ask(port_of(passed), "/embed", "eel") == (200, 3)


@pytest.mark.parametrize("options", [["--workers", "2"], ["--reload"]], ids=lambda words: words[0])
def test_a_passed_socket_can_be_served_by_workers_and_with_reload(options, passing):
    if options == ["--reload"]:
        pytest.importorskip("watchfiles")
    with listening() as passed, passing([passed], "http", "serve", "lengths:app", *options) as run:
        assert ask(port_of(passed), "/embed", "eel") == (200, 3)
        end_of(run, signal.SIGTERM)


def test_workers_refuse_more_than_one_passed_socket(passing):
    command = ("serve", "lengths:app", "--workers", "2")
    with listening() as one, listening() as two, passing([one, two], "a:b", *command) as run:
        said = end_of(run, code=2)
    assert "--workers serves one: pass one, or name one address" in said


def wrong_socket(what, stack, tmp_path):
    """Opens a socket that can't be used; gives it, and a name for it."""
    match what:
        case "datagram":
            return stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)), "http"
        case "file":
            return stack.enter_context(open(os.devnull)), "http"
        case "connection":
            near, far = socket.socketpair()
            stack.enter_context(far)
            return stack.enter_context(near), "http"
        case "tcp admin":
            return stack.enter_context(listening()), "admin"
        case "open admin":
            return stack.enter_context(listening_at(tmp_path / "open.sock", 0o666)), "admin"
        case _:
            abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
            abstract.bind(b"\0" + os.urandom(8).hex().encode())
            abstract.listen()
            return abstract, "admin"


@pytest.mark.parametrize("what", WRONG)
def test_a_socket_that_cant_be_used_is_refused_with_what_its_unit_must_say(what, passing, tmp_path):
    with ExitStack() as stack:
        passed, name = wrong_socket(what, stack, tmp_path)
        with passing([passed], name, "serve", "lengths:app") as run:
            said = end_of(run, code=1)
    assert said.startswith(f"shoal: file descriptor 3 ({name}) from systemd {WRONG[what]}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("names", "arguments", "why"),
    [
        ("http", ["lengths:app", "--port", "1"], "in place of --port; leave --port out"),
        ("admin", ["lengths:app", "--admin-socket", "/x"], "leave --admin-socket out"),
        (
            "admin",
            ["lengths:plain"],
            "leave out the socket named admin from systemd, for which it must",
        ),
        ("admin", ["lengths:app", "--reload"], "--reload takes one socket from systemd"),
    ],
)
def test_a_command_that_contradicts_sockets_is_refused(names, arguments, why, passing, tmp_path):
    with (
        listening_at(tmp_path / "one.sock") as passed,
        passing([passed], names, "serve", *arguments) as run,
    ):
        said = end_of(run, code=2)
    assert why in said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"LISTEN_FDS": "many"}, "LISTEN_FDS must be how many sockets were passed, not 'many'"),
        ({"LISTEN_FDS": "-1"}, "LISTEN_FDS must be how many sockets were passed, not '-1'"),
        ({"LISTEN_FDNAMES": "a:b"}, "LISTEN_FDNAMES has 2 names, for 1 sockets"),
        ({"LISTEN_FDS": "2", "LISTEN_FDNAMES": "a"}, "LISTEN_FDNAMES has 1 names, for 2 sockets"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(changes, why):
    given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", **changes}
    with pytest.raises(ValueError) as caught:
        passed_sockets(given)
    assert str(caught.value) == why


def test_sockets_for_another_process_are_left_alone():
    given = {"LISTEN_PID": str(os.getppid()), "LISTEN_FDS": "1", "HOME": "/root"}
    assert passed_sockets(given) == PassedSockets()
    assert given == {"HOME": "/root"}


def test_two_sockets_named_admin_are_refused(passing, tmp_path):
    with (
        listening_at(tmp_path / "a") as one,
        listening_at(tmp_path / "b") as other,
        passing([one, other], "admin:admin", "serve", "lengths:app") as run,
    ):
        _, said = run.communicate(timeout=HANG_S)
    assert said == "shoal: 2 of the sockets from systemd are named 'admin', not one\n"
