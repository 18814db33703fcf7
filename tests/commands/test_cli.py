"""The ``shoal`` command as a process of its own, with real signals."""

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

import pytest
from processes import end_of, wait_until_refused

from shoal.cli import main
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

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
"""


SERVED = "served:app"
TUNE = ["tune", "held:handler", "--item", "1", "--rate", "1"]


@pytest.fixture
def directory(terminal):
    for name, text in {
        "served": APPLICATION,
        "my-served": APPLICATION,
        "broken": "def load():\n    raise LookupError('bad day')\n\nload()\n",
        "slow_import": SLOW_IMPORT,
        "slow_start": SLOW_START,
        "script": "def main():\n    pass\n\nraise SystemExit(main())\n",
        "needy": "import a_module_that_nobody_has\n",
        "unfinished": "def load(:\n",
        "held": HELD_HANDLER,
    }.items():
        (terminal.directory / f"{name}.py").write_text(text)
    return terminal.directory


def begin(port, path, header=""):
    """Sends a request; it is under way when this returns."""
    client = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
    received = b""
    while b"begun" not in received:
        received += client.recv(2**16)
    return client


def asked_for_a_byte(port):
    return begin(port, "/body", "Content-Length: 1\r\n")


def assert_finishes(client):
    with client, client.makefile("rb") as rest:
        assert b"ended" in rest.read()


def test_a_signal_ends_an_idle_server_with_0(serving):
    with serving(fresh=True) as (process, _):
        said = end_of(process, signal.SIGTERM)
    assert re.fullmatch(
        r"Shoal served 0 requests, drained in \d\.\d s: 0 finished, 0 cut off\n", said
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_what_is_under_way_finish(serving, signum):
    with serving() as (process, port):
        clients = [begin(port, "/hold") for _ in range(5)]
        process.send_signal(signum)
        for client in clients:
            assert_finishes(client)
        said = end_of(process)
    assert "5 finished, 0 cut off" in said


def test_the_drain_ends_after_the_graceful_timeout(serving):
    with serving("--graceful-timeout", "0.1") as (process, port), begin(port, "/forever"):
        said = end_of(process, signal.SIGTERM)
    assert "0 finished, 1 cut off" in said


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(serving, signum, code):
    with serving() as (process, port), begin(port, "/forever"):
        process.send_signal(signum)
        wait_until_refused(port)
        assert end_of(process, signum, code=code) == ""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_a_hang_up_does_not_cut_a_drain_short(serving, first):
    with serving() as (process, port), asked_for_a_byte(port) as client:
        process.send_signal(first)
        wait_until_refused(port)
        process.send_signal(signal.SIGHUP)
        client.sendall(b"x")
        assert_finishes(client)
        while process.poll() is None:  # nor while the interpreter takes itself apart
            process.send_signal(signal.SIGHUP)
        said = end_of(process)
    assert "1 finished, 0 cut off" in said


def test_nor_does_one_that_comes_at_the_same_moment(serving):
    with serving() as (process, port), asked_for_a_byte(port) as client:
        for signum in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            process.send_signal(signum)
        wait_until_refused(port)
        client.sendall(b"x")
        assert_finishes(client)
        said = end_of(process)
    assert "1 finished, 0 cut off" in said


def test_a_terminal_that_is_closed_lets_what_is_under_way_finish(terminal, directory):
    ours, theirs = pty.openpty()
    process = terminal.popen(
        *("serve", "served:app", "--port", "0"),
        fresh=True,
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    hang = threading.Timer(HANG_S, process.kill)
    hang.start()
    try:
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(ours, 1000)
        client = begin(int(said.rpartition(b":")[2]), "/hold")
        os.close(ours)
        assert_finishes(client)
        process.wait()
    finally:
        hang.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 0


def test_a_server_that_ignores_hang_ups_as_nohup_has_it_goes_on(serving):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serving(fresh=True) as (process, port):
            process.send_signal(signal.SIGHUP)
            begin(port, "/").close()
            end_of(process, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_that_cannot_be_interrupted_is_left_by_force(serving):
    with serving("--graceful-timeout", "0") as (process, port), begin(port, "/stuck"):
        said = end_of(process, signal.SIGTERM, code=1)
    assert said == (
        "Shoal is stopping: running requests have 0 s to finish, and it ends within 4 s; a second"
        " Ctrl+C or SIGTERM stops it at once\n"
        "Shoal was stopped by force: still busy 4 s after the signal, with a thread that can't be"
        " interrupted or a blocked event loop\n"
    )


def test_the_options_are_taken(serving):
    options = ["--host", "127.0.0.1", "--send-timeout", "2.5", "--max-connections", "1"]
    with serving(*options, "--log-level", "debug") as (process, port):
        begin(port, "/").close()
        said = end_of(process, signal.SIGTERM)
    assert "the connection limit of 1 is reached" in said


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "slow_import:app", "--port", "0"],
        ["serve", "slow_start:app", "--port", "0"],
        [*TUNE, "--p99", "1", "--runs", "100000", "--event-loop", "trio"],
        [*TUNE, "--p99", "1", "--runs", "100000", "--event-loop", "asyncio"],
    ],
)
def test_ctrl_c_ends_a_command_without_a_traceback(terminal, directory, words):
    with terminal.popen(*words) as process:
        assert process.stderr.readline() == "begun\n"
        said = end_of(process, signal.SIGINT, code=130)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--rate", "50", "--duration", "2", "--run-time", "0.01"],
        [*TUNE, "--p99", "100", "--runs", "5", "--max-batch-size", "1", "--requests", "100"],
    ],
)
def test_planning_needs_nothing_but_shoal(terminal, directory, words):
    with (directory / "site" / "sitecustomize.py").open("a") as file:
        file.write(WITHOUT_EXTRAS)
    code, _, said = terminal.run(*words, fresh=True)
    assert code == 0, said


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
        ("served:number", "served:number is not an ASGI application, but 3; to serve "),
        ("served:Application", "is not an ASGI application, but <class "),
        ("served:wsgi", "is not an ASGI application, but <function wsgi "),
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
        ["--graceful-timeout", "nan"],
        ["--log-level", "loud"],
        ["--gracef", "1"],
    ],
)
def test_a_wrong_option_is_told(options, run):
    code, _, err = run("serve", "served:app", *options)
    assert code == 2
    what, where = err.splitlines()
    assert what.startswith("shoal serve: error: ")
    assert where == "see shoal serve --help"


def test_an_address_in_use_is_told_in_one_line(terminal, directory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = terminal.failed("serve", "served:app", "--port", str(port))
    assert said == f"shoal: can't listen at 127.0.0.1 port {port}: Address already in use\n"


def test_no_command_shows_how_to_give_one(capsys):
    assert main([]) == 2
    assert "shoal serve my_module:app" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "begins", "error"),
    [
        ("broken", "Traceback (most recent call last):", "LookupError: bad day"),
        ("needy", "Traceback (most recent call last):", "a_module_that_nobody_has"),
        ("unfinished", '  File "', "SyntaxError"),
        ("script", "Traceback (most recent call last):", "raise SystemExit(main())"),
    ],
)
def test_a_module_that_fails_to_import_has_a_traceback(terminal, directory, module, begins, error):
    said = terminal.failed("serve", f"{module}:app")
    assert said.startswith(begins)
    assert error in said
    assert "importlib" not in said
    assert said.endswith(f"shoal: importing {module}:app failed, see above\n")


def test_an_application_that_does_not_start_shows_its_traceback(terminal, directory):
    said = terminal.failed("serve", "served:does_not_start", "--port", "0")
    assert "in does_not_start" in said
    assert said.splitlines()[-1] == (
        "shoal: the application did not start: LookupError: no weights in the file"
    )


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("serve", "shoal serve my_module:app"),
        ("run-batch", "shoal run-batch my_module:embed texts.jsonl vectors.jsonl --limit 1000"),
        ("simulate", "shoal simulate --rate 1000 --run-time 0.002+0.00005n --option "),
        ("tune", "shoal tune my_module:embed --item"),
    ],
)
def test_help_shows_an_example(name, example, run):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert example in out


def test_help_names_every_command(run):
    code, out, _ = run("--help")
    assert code == 0
    assert re.findall(r"^    ([\w-]+)", out, re.MULTILINE) == [
        *("serve", "check", "start", "stop", "status", "logs"),
        *("backends", "endpoints", "traffic", "shadow", "scale", "call"),
        *("why", "trace", "run-batch", "simulate", "tune"),
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
    assert "shoal.commands.named" in loaded["logs --help"]
    assert "shoal.commands.serve" not in loaded["logs --help"]


def test_the_version_is_told(run):
    code, out, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"shoal \d+\.\d+.*\n", out)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["serve", "served:app", "--prot", "80"], "; did you mean '--port'?"),
        (["serve", "served:app", "--acces-log"], "; did you mean '--access-log'?"),
        (["start", "--graceful-timeout-s=3"], "; did you mean '--graceful-timeout'?"),
        (["endpoints", "create", "e", "--rout", "/e"], "; did you mean '--route'?"),
        (["serve", "served:app", "--xyzzy"], "error: unrecognized arguments: --xyzzy"),
        (["--verison"], "arguments: --verison; write options after the command"),
        (["--port=3", "serve"], "arguments: --port=3; write options after the command"),
        (["backends", "--url", "x", "list"], "arguments: --url; write options after the command"),
        (["backends", "create"], "arguments are required: TAG, MODULE:NAME"),
        (["backends", "create", "small"], "arguments are required: MODULE:NAME"),
        (["backends", "update", "small"], "arguments are required: KEY=VALUE"),
        (["call"], "arguments are required: ENDPOINT"),
    ],
)
def test_a_wrong_or_missing_word_is_answered_with_what_was_meant(words, answer, run):
    code, _, err = run(*words)
    assert code == 2
    assert err.splitlines()[0].endswith(answer)
