"""The ``shoal`` command as a process of its own, with real signals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager

import pytest
from processes import wait_until_refused

from progress_lines import first_line
from shoal.cli import main

pytestmark = pytest.mark.real_time

HANG_S = 20

APPLICATION = '''
import time

import trio


class Application:
    """Answers /, and holds what its paths say.

    /hold until the drain begins, /body until the request's body is there, /forever for ever; and
    /stuck never gives its thread back.
    """

    def __init__(self):
        self.draining = trio.Event()

    def begin_drain(self):
        self.draining.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
        if scope["path"] == "/hold":
            await self.draining.wait()
        elif scope["path"] == "/body":
            while (await receive()).get("more_body"):
                pass
        elif scope["path"] == "/stuck":
            await trio.to_thread.run_sync(time.sleep, 3600)
        elif scope["path"] == "/forever":
            await trio.sleep_forever()
        await send({"type": "http.response.body", "body": b"ended"})


app = Application()
number = 3


def wsgi(environ, start_response):
    pass


async def does_not_start(scope, receive, send):
    await receive()
    raise LookupError("no weights in the file")
'''

SLOW_IMPORT = """
import sys
import time

print("begun", file=sys.stderr, flush=True)
time.sleep(3600)
"""

SLOW_START = """
import sys

import trio


async def app(scope, receive, send):
    print("begun", file=sys.stderr, flush=True)
    await trio.sleep_forever()
"""


HELD_HANDLER = """
import sys
import time


def handler(items: list[int]) -> list[int]:
    print("begun", file=sys.stderr, flush=True)
    time.sleep(0.01)
    return items
"""

WITHOUT_EXTRAS = """
import sys

for name in ("h11", "h2", "hypercorn", "matplotlib", "orjson", "pydantic", "starlette"):
    sys.modules[name] = None

from shoal.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "served.py").write_text(APPLICATION)
    (tmp_path / "my-served.py").write_text(APPLICATION)
    (tmp_path / "broken.py").write_text("def load():\n    raise LookupError('bad day')\n\nload()\n")
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT)
    (tmp_path / "slow_start.py").write_text(SLOW_START)
    (tmp_path / "needy.py").write_text("import a_module_that_nobody_has\n")
    (tmp_path / "held.py").write_text(HELD_HANDLER)
    (tmp_path / "without_extras.py").write_text(WITHOUT_EXTRAS)
    return tmp_path


def command(*arguments):
    return [sys.executable, "-m", "shoal", *arguments]


def run(directory, *arguments):
    return subprocess.run(
        command(*arguments), cwd=directory, capture_output=True, text=True, timeout=HANG_S
    )


class Served:
    """A running ``shoal serve``: its port, and its standard error line by line."""

    def __init__(self, process):
        self.process = process
        self.first_line = first_line(process.stderr)
        found = re.fullmatch(r"Shoal serving (\S+) on http://127\.0\.0\.1:(\d+)\n", self.first_line)
        assert found, self.first_line + process.stderr.read()
        self.port = int(found[2])

    def ask(self, path, header=""):
        """Send a request; it is under way when this returns."""
        return ask(self.port, path, header)

    def signal(self, signum):
        self.process.send_signal(signum)

    def end(self):
        """Wait for its end; gives the exit code and what it said."""
        _, said = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, said


def ask(port, path, header=""):
    client = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
    received = b""
    while b"begun" not in received:
        received += client.recv(2**16)
    return client


@contextmanager
def serving(directory, *options, application="served:app"):
    process = subprocess.Popen(
        command("serve", application, "--port", "0", *options),
        cwd=directory,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    hang = threading.Timer(HANG_S, process.kill)
    hang.start()
    try:
        yield Served(process)
    finally:
        hang.cancel()
        process.kill()
        process.communicate()


# Serving, and the two ways to end it.


def test_a_signal_ends_an_idle_server_with_0(directory):
    with serving(directory) as served:
        served.signal(signal.SIGTERM)
        code, said = served.end()
    assert code == 0
    assert re.fullmatch(
        r"Shoal served 0 requests, drained in \d\.\d s: 0 finished, 0 cut off\n", said
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_what_is_under_way_finish(directory, signum):
    with serving(directory) as served:
        clients = [served.ask("/hold") for _ in range(5)]
        served.signal(signum)
        for client in clients:
            with client, client.makefile("rb") as rest:
                assert b"ended" in rest.read()
        code, said = served.end()
    assert code == 0
    assert "5 finished, 0 cut off" in said


def test_the_drain_ends_after_the_graceful_timeout(directory):
    with serving(directory, "--graceful-timeout", "0.1") as served, served.ask("/forever"):
        served.signal(signal.SIGTERM)
        code, said = served.end()
    assert code == 0
    assert "0 finished, 1 cut off" in said


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(directory, signum, code):
    with serving(directory) as served, served.ask("/forever"):
        served.signal(signum)
        wait_until_refused(served.port)
        served.signal(signum)
        assert served.end() == (code, "")


def test_a_drain_that_takes_long_says_how_it_can_be_cut_short(directory):
    with serving(directory) as served, served.ask("/forever"):
        served.signal(signal.SIGINT)
        said = served.process.stderr.readline()
        served.signal(signal.SIGINT)
        assert served.end() == (130, "")
    assert said == (
        "Shoal is stopping; running requests have at most 24 s to finish; a second Ctrl+C or "
        "SIGTERM stops it at once\n"
    )


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_a_hang_up_does_not_cut_a_drain_short(directory, first):
    with serving(directory) as served, served.ask("/body", "Content-Length: 1\r\n") as client:
        served.signal(first)
        wait_until_refused(served.port)
        served.signal(signal.SIGHUP)
        client.sendall(b"x")
        with client.makefile("rb") as rest:
            assert b"ended" in rest.read()
        while served.process.poll() is None:  # nor while the interpreter takes itself apart
            served.signal(signal.SIGHUP)
        code, said = served.end()
    assert code == 0
    assert "1 finished, 0 cut off" in said


def test_nor_does_one_that_comes_at_the_same_moment(directory):
    with serving(directory) as served, served.ask("/body", "Content-Length: 1\r\n") as client:
        for signum in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            served.signal(signum)
        wait_until_refused(served.port)
        client.sendall(b"x")
        with client.makefile("rb") as rest:
            assert b"ended" in rest.read()
        code, said = served.end()
    assert code == 0
    assert "1 finished, 0 cut off" in said


def test_a_terminal_that_is_closed_lets_what_is_under_way_finish(directory):
    terminal, line = pty.openpty()
    process = subprocess.Popen(
        command("serve", "served:app", "--port", "0"),
        cwd=directory,
        stdin=line,
        stdout=line,
        stderr=line,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(line)
    hang = threading.Timer(HANG_S, process.kill)
    hang.start()
    try:
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(terminal, 1000)
        with ask(int(said.rpartition(b":")[2]), "/hold") as client, client.makefile("rb") as rest:
            os.close(terminal)
            assert b"ended" in rest.read()
        process.wait()
    finally:
        hang.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 0


def test_a_server_that_ignores_hang_ups_as_nohup_has_it_goes_on(directory):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serving(directory) as served:
            served.signal(signal.SIGHUP)
            served.ask("/").close()
            served.signal(signal.SIGTERM)
            assert served.end()[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_that_cannot_be_interrupted_is_left_by_force(directory):
    with serving(directory, "--graceful-timeout", "0") as served, served.ask("/stuck"):
        served.signal(signal.SIGTERM)
        code, said = served.end()
    assert code == 1
    assert said == (
        "Shoal is stopping; running requests have at most 4 s to finish; a second Ctrl+C or"
        " SIGTERM stops it at once\n"
        "Shoal was stopped by force: still busy 4 s after the signal, with a thread that can't be"
        " interrupted or a blocked event loop\n"
    )


def test_the_options_are_taken(directory):
    options = ["--host", "127.0.0.1", "--send-timeout", "2.5", "--max-connections", "1"]
    with serving(directory, *options, "--log-level", "debug") as served:
        served.ask("/").close()
        served.signal(signal.SIGTERM)
        code, said = served.end()
    assert code == 0
    assert "the connection limit of 1 is reached" in said


@pytest.mark.parametrize("application", ["slow_import:app", "slow_start:app"])
def test_ctrl_c_before_the_server_listens_ends_without_a_traceback(directory, application):
    process = subprocess.Popen(
        command("serve", application, "--port", "0"),
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "Traceback" not in said


# Planning. What the two commands do is tested in tests/planning.


def test_a_plan_is_printed(directory):
    ended = run(directory, "simulate", "--rate", "50", "--duration", "2", "--run-time", "0.01")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "handler busy" in ended.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--rate", "50", "--duration", "2", "--run-time", "0.01"],
        ["tune", "held:handler", "--item", "1", "--rate", "1", "--p99", "100", "--runs", "5"],
    ],
)
def test_planning_needs_nothing_but_shoal(directory, arguments):
    if arguments[0] == "tune":
        arguments = [*arguments, "--max-batch-size", "1", "--requests", "100"]
    ended = subprocess.run(
        [sys.executable, "without_extras.py", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_ctrl_c_ends_measuring_without_a_traceback(directory, loop):
    arguments = ["--item", "1", "--rate", "1", "--p99", "1", "--runs", "100000"]
    process = subprocess.Popen(
        command("tune", "held:handler", *arguments, "--event-loop", loop),
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "Traceback" not in said


# Mistakes of the user's: one line, no traceback.


@pytest.mark.parametrize(
    ("application", "line"),
    [
        ("served", "'served' is not an import path; write it like 'my_module:app'"),
        ("absent.py", "there is no file absent.py"),
        ("served.py:absent", "served has no attribute 'absent'"),
        ("served.py:app:x", "'served:app:x' is not an import path"),
        (
            "my-served.py",
            "my-served.py can't be imported, since 'my-served' is not a module's name",
        ),
        ("../served:app", "'../served:app' is not an import path"),
        ("absent:app", "no module 'absent' in "),
        ("served.inner:app", "no module 'served.inner' in "),
        ("served:absent", "served has no attribute 'absent'"),
        ("served:app.absent", "served has no attribute 'app.absent'"),
        ("served:number", "served:number is not an ASGI application: int objects can't be called"),
        ("served:Application", "it is the class Application; name an instance of it. To serve a"),
        ("served:wsgi", "it does not take (scope, receive, send). To serve a function, declare it"),
    ],
)
def test_a_wrong_application_is_told_in_one_line(directory, application, line, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["serve", application]) == 2
    sys.modules.pop("served", None)
    said = capsys.readouterr().err
    assert line in said
    assert said.startswith("shoal: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "65536"],
        ["--port", "http"],
        ["--graceful-timeout", "-1"],
        ["--graceful-timeout", "nan"],
        ["--graceful-timeout", "inf"],
        ["--send-timeout", "0"],
        ["--max-connections", "0"],
        ["--log-level", "loud"],
        ["--gracef", "1"],
    ],
)
def test_a_wrong_option_is_told(options, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "served:app", *options])
    assert ended.value.code == 2
    what, where = capsys.readouterr().err.splitlines()
    assert what.startswith("shoal serve: error: ")
    assert where == "see shoal serve --help"


def test_an_address_in_use_is_told_in_one_line(directory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(directory, "serve", "served:app", "--port", str(port))
    assert ended.returncode == 1
    assert ended.stderr == f"shoal: can't listen at 127.0.0.1 port {port}: Address already in use\n"


def test_no_command_shows_how_to_give_one(capsys):
    assert main([]) == 2
    assert "shoal serve my_module:app" in capsys.readouterr().err


# Failures of the application's: its traceback, then one line.


@pytest.mark.parametrize(
    ("module", "error"), [("broken", "LookupError: bad day"), ("needy", "a_module_that_nobody_has")]
)
def test_a_module_that_fails_to_import_shows_its_traceback(directory, module, error):
    ended = run(directory, "serve", f"{module}:app")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback (most recent call last):")
    assert error in ended.stderr
    assert "importlib" not in ended.stderr
    assert ended.stderr.endswith(f"shoal: importing {module}:app failed, see above\n")


def test_a_module_with_a_mistake_in_its_syntax_shows_that_alone(directory):
    (directory / "unfinished.py").write_text("def load(:\n")
    ended = run(directory, "serve", "unfinished:app")
    assert ended.returncode == 1
    assert ended.stderr.startswith('  File "')
    assert "SyntaxError" in ended.stderr


def test_an_application_that_does_not_start_shows_its_traceback(directory):
    ended = run(directory, "serve", "served:does_not_start", "--port", "0")
    assert ended.returncode == 1
    assert "in does_not_start" in ended.stderr
    last_line = ended.stderr.splitlines()[-1]
    assert last_line == (
        "shoal: the application did not start: LookupError: no weights in the file"
    )


# Help.


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("serve", "shoal serve my_module:app"),
        ("simulate", "shoal simulate --rate 1000 --run-time 0.002+0.00005n --max-batch-size 64"),
        ("tune", "shoal tune my_module:embed --item"),
    ],
)
def test_help_shows_an_example(name, example, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert example in capsys.readouterr().out


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert re.findall(r"^    (\w+)", told, re.MULTILINE) == [
        *("serve", "check", "start", "stop", "status", "logs"),
        *("backends", "endpoints", "traffic", "shadow", "scale", "call"),
        *("top", "trace", "simulate", "tune"),
    ]


def test_help_loads_no_command_and_a_command_no_other():
    """Each takes several times as long to load as the help."""
    code = "import sys; sys.argv[1:] = {}; from shoal.cli import main\n"
    code += "try: main()\nexcept SystemExit: print(*sys.modules)"
    loaded = {
        words: subprocess.run(
            [sys.executable, "-c", code.format(words.split())],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for words in ("--help", "logs --help")
    }
    assert not {"trio", "anyio", "starlette", "shoal.batching.batcher"} & set(loaded["--help"])
    assert "shoal.commands.logs" in loaded["logs --help"]
    assert "shoal.commands.serve" not in loaded["logs --help"]


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"shoal \d+\.\d+.*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["serv", "served:app"], "serve"),
        (["backends", "creat", "small", "my:Code"], "create"),
        (["serve", "served:app", "--prot", "80"], "--port"),
        (["serve", "served:app", "--acces-log"], "--access-log"),
        (["serve", "served:app", "--event-loop", "asyncoi"], "asyncio"),
        (["start", "--graceful-timeout-s=3"], "--graceful-timeout"),
        (["endpoints", "create", "classify", "--rout", "/classify"], "--route"),
    ],
)
def test_a_misspelt_word_of_a_command_is_answered_with_the_nearest(words, meant, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().err.splitlines()[0].endswith(f"; did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--verison"], "unrecognized arguments: --verison; did you mean '--version'?"),
        (["--port=3", "serve"], "unrecognized arguments: --port=3; write options after the com"),
        (["backends", "--url", "x", "list"], "unrecognized arguments: --url; write options afte"),
    ],
)
def test_an_option_before_the_command_is_named(words, answer, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"error: {answer}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["backends", "create"], "TAG, MODULE:NAME"),
        (["backends", "create", "small"], "MODULE:NAME"),
        (["backends", "update", "small"], "KEY=VALUE"),
        (["call"], "ENDPOINT"),
    ],
)
def test_only_what_is_missing_is_asked_for(words, wanted, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[0].endswith(f"arguments are required: {wanted}")


def test_a_word_like_no_other_is_answered_without_a_guess(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "served:app", "--xyzzy"])
    assert capsys.readouterr().err.splitlines()[0].endswith("unrecognized arguments: --xyzzy")
