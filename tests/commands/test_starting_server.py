"""What `shoal serve` says while it starts, where it can't start, and in the log of its user.

It has loaded little when it answers, since loading takes nearly all of its start. The output of a
command may be unwritable, or nobody reads it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from processes import ask, end_of

from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

LOGGING = """\
import logging.config

import shoal

logging.config.dictConfig({"version": 1})
app = shoal.App()


@app.post("/fail")
def fail(item: int) -> int:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    raise LookupError("no such weights")
"""
MISSING = """\
import shoal

app = shoal.App()


def load(path: str) -> bytes:
    return open(path, "rb").read()


@app.endpoint("/embed", placement=PLACEMENT, start_timeout_s=LIMIT)
class Model:
    def __init__(self) -> None:
        LOAD

    def __call__(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
"""
SLOW = """\
import time

import shoal

time.sleep(1.2)
app = shoal.App()


@app.endpoint("/embed", placement="thread")
class Embedder:
    def __init__(self) -> None:
        time.sleep(1.2)

    def __call__(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
"""
# Without what it loads in a thread once clients can connect.
EMPTY = """\
import atexit
import sys

import shoal
from shoal.server.server import _Server


async def load_nothing(self):
    pass


_Server._load = load_nothing
app = shoal.App()
"""
TELLING = f"""{EMPTY}
atexit.register(lambda: print(*sys.modules))
"""
FOR_ENDPOINTS = {
    *("pydantic", "pydantic_core", "starlette.requests", "starlette.responses"),
    *("shoal.batching.batcher", "shoal.serving.backends.backend", "shoal.http.json.payload"),
}
FOR_OTHER_REQUESTS = {
    *("prometheus_client", "starlette.routing", "starlette.datastructures"),
    *("hypercorn", "h11", "h2", "wsproto", "hpack", "shoal.server.streams.connection"),
}
FOR_OPTIONS = {"sqlite3", "tomllib", "shoal.http.admin.api"}
SIMULATE = ["simulate", "--rate", "100", "--run-time", "0.002+0.0001n", "--duration", "1"]
GROUP = 'raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [OSError(2, "None", "w.bin")])])'
SEVERAL = 'raise ExceptionGroup("two", [KeyError("a"), KeyError("b")])'


def missing(placement, load, limit_s=60):
    return (
        MISSING.replace("PLACEMENT", repr(placement))
        .replace("LOAD", load)
        .replace("LIMIT", str(limit_s))
    )


def test_a_module_that_configures_logging_does_not_silence_the_server(terminal):
    (terminal.directory / "logs.py").write_text(LOGGING)
    with terminal.serving("serve", "logs:app", "--port", "0", "--access-log") as (process, port):
        assert ask(port, "/fail", 1)[0] == 500
        said = end_of(process, signal.SIGTERM)
    assert "LookupError: no such weights" in said
    assert '"path":"/fail","status":500' in said


@pytest.mark.parametrize("placement", ["task", "process"])
def test_a_start_that_fails_names_the_file_and_shows_only_frames_of_the_user(terminal, placement):
    (terminal.directory / "app.py").write_text(missing(placement, 'load("weights.bin")'))
    said = terminal.failed("serve", "app:app", "--port", "0")
    assert said.splitlines()[-1] == (
        "shoal: the application did not start: the endpoint /embed could not be opened: "
        "FileNotFoundError: [Errno 2] No such file or directory: 'weights.bin'"
    )
    frames = re.findall(r'File "(.*)", line \d+, in (\w+)', said)
    file = str(terminal.directory / "app.py")
    assert frames == [(file, "__init__"), (file, "load")]
    assert said.count("No such file") == 1
    assert " ERROR " not in said


@pytest.mark.parametrize(
    ("placement", "load", "told"),
    [
        ("task", GROUP, ["could not be opened: FileNotFoundError: [Errno 2] None: 'w.bin'"]),
        ("task", SEVERAL, ["| KeyError: 'a'", "| KeyError: 'b'", "ExceptionGroup: two (2 sub-"]),
        ("thread", "import absent_model", ["ModuleNotFoundError: No module named 'absent_model'"]),
    ],
    ids=["group", "several", "module"],
)
def test_a_start_that_fails_tells_each_reason(terminal, placement, load, told):
    (terminal.directory / "app.py").write_text(missing(placement, load))
    said = terminal.failed("serve", "app:app", "--port", "0")
    assert all(reason in said for reason in told)
    assert told[-1] in said.splitlines()[-1]
    assert "src/shoal" not in said


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_a_start_that_takes_too_long_names_the_option(terminal, placement):
    load = "__import__('time').sleep(0.4 if PLACEMENT == 'thread' else 600)"
    text = missing(placement, load.replace("PLACEMENT", repr(placement)), 0.3)
    (terminal.directory / "app.py").write_text(text)
    said = terminal.failed("serve", "app:app", "--port", "0")
    assert said.splitlines()[-1].endswith("not ready within 0.3 s (start_timeout_s)")
    assert "Traceback" not in said


def test_a_start_that_takes_long_says_what_is_loaded_and_how_long_that_took(terminal):
    (terminal.directory / "slow.py").write_text(SLOW)
    process = terminal.popen("serve", "slow:app", "--port", "0")
    try:
        said = "".join(until_serving(process))
    finally:
        process.kill()
        process.communicate()
    assert re.sub(r"[\d.]+ s", "N s", said) == (
        "Shoal is importing slow:app\n"
        "Shoal imported slow:app in N s\n"
        "Shoal is loading slow:app: Embedder\n"
        "Shoal loaded slow:app in N s\n"
    )


def until_serving(process):
    for line in process.stderr:
        if line.startswith("Shoal serving "):
            return
        yield line


GATED = """\
import time
from pathlib import Path

import shoal

app = shoal.App()


@app.endpoint("/embed", placement="thread")
class Embedder:
    def __init__(self) -> None:
        Path("began").touch()
        while not Path("gate").exists():
            time.sleep(0.01)

    def __call__(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
"""


def test_workers_answer_for_a_server_that_starts(terminal, free_tcp_port):
    (terminal.directory / "gated.py").write_text(GATED)
    port = free_tcp_port
    process = terminal.popen("serve", "gated:app", "--port", str(port), "--workers", "2")
    try:
        assert until_answered(port, "/-/healthz") == (200, {"status": "alive"})
        status, body = ask(port, "/-/readyz")
        assert (status, body["loading"]) == (503, ["Embedder"])
        assert ask(port, "/embed", "eel")[0] == 503
        (terminal.directory / "gate").touch()
        for _ in until_serving(process):
            pass
        assert ask(port, "/embed", "eel") == (200, 3)
    finally:
        process.kill()
        process.communicate()


def until_answered(port, path):
    while True:
        try:
            return ask(port, path)
        except ConnectionRefusedError:
            time.sleep(0.02)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_notified_when_it_is_ready_and_when_it_stops(terminal, kind):
    (terminal.directory / "gated.py").write_text(GATED)
    (terminal.directory / "gate").touch()
    name = str(terminal.directory / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name if kind == "path" else f"\0{name}")
        manager.settimeout(HANG_S)
        terminal.environment["NOTIFY_SOCKET"] = name if kind == "path" else f"@{name}"
        with terminal.serving("serve", "gated:app", "--port", "0") as (process, port):
            assert manager.recv(100) == b"READY=1"
            assert ask(port, "/-/readyz")[0] == 200
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(timeout=HANG_S) == 0


def loaded(terminal, loop):
    """The modules of a server after one request, which no route answers."""
    command = ("serve", "app:app", "--port", "0", "--event-loop", loop)
    with terminal.serving(*command, fresh=True) as (process, port):
        assert ask(port, "/nowhere")[0] == 404
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err
    return set(out.split())


@pytest.mark.parametrize(("loop", "other"), [("trio", "asyncio"), ("asyncio", "trio")])
def test_an_empty_application_is_served_without_what_only_others_need(terminal, loop, other):
    (terminal.directory / "app.py").write_text(TELLING)
    modules = loaded(terminal, loop)
    assert {loop, "shoal.http.app.app", "shoal.serving.controller.controller"} <= modules
    assert modules & {other, *FOR_ENDPOINTS, *FOR_OTHER_REQUESTS, *FOR_OPTIONS} == set()
    assert not [name for name in modules if "front_end" in name], "without --workers"


LISTING = f"""{EMPTY}
at_the_start = set()


@app.endpoint("/loaded")
def loaded(items: list[int]) -> list[list[str]]:
    return [sorted(set(sys.modules) - at_the_start) for _ in items]


async def served(scope, receive, send):
    async def begin(message):
        if message["type"] == "lifespan.startup.complete":
            at_the_start.update(sys.modules)
        await send(message)

    await app(scope, receive, begin)
"""


def test_the_first_request_to_an_endpoint_loads_nothing(terminal):
    (terminal.directory / "app.py").write_text(LISTING)
    with terminal.serving("serve", "app:served", "--port", "0", fresh=True) as (_, port):
        assert ask(port, "/loaded", 1) == (200, [])
        assert ask(port, "/loaded", 1) == (200, []), "while the first answer was sent"


def run(words, output):
    """Runs a command; gives its exit code, and what it said beside."""
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(("words", "ends"), [(SIMULATE, 141), (["--help"], 0)])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(words, ends):
    readable, writable = os.pipe()
    os.close(readable)
    try:
        code, said = run(words, writable)
    finally:
        os.close(writable)
    assert (code, said) == (ends, "")


def test_output_that_can_not_be_written_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        code, said = run(SIMULATE, full)
    assert (code, said) == (1, "shoal: can't write the result: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_the_null_device(closed, tmp_path):
    (tmp_path / "seen.py").write_text(
        "import os, pathlib\n"
        "null = os.stat(os.devnull).st_rdev\n"
        "found = [os.fstat(n).st_rdev == null for n in range(3)]\n"
        "pathlib.Path('seen').write_text(str(found))\n"
    )
    shell = f"exec {sys.executable} -m shoal serve seen:app {closed}"
    command = ["sh", "-c", shell]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    ended = subprocess.run(command, cwd=tmp_path, timeout=HANG_S, check=False, **streams)
    assert ended.returncode == 2  # the module has no `app`
    expected = {">&-": [False, True, False], "2>&-": [False, False, True]}
    assert (tmp_path / "seen").read_text() == str(expected.get(closed, [True] * 3))
