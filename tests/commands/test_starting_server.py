"""What `shoal serve` says while it starts, where it can't start, and in the log of its user."""

import re
import signal
import socket
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
    code, _, said = terminal.run("serve", "app:app", "--port", "0")
    assert code == 1
    assert said.splitlines()[-1] == (
        "shoal: the application did not start: the endpoint /embed could not be opened: "
        "FileNotFoundError: [Errno 2] No such file or directory: 'weights.bin'"
    )
    frames = re.findall(r'File "(.*)", line \d+, in (\w+)', said)
    file = str(terminal.directory / "app.py")
    assert frames == [(file, "__init__"), (file, "load")]
    assert said.count("No such file") == 1
    assert " ERROR " not in said


GROUP = 'raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [OSError(2, "None", "w.bin")])])'
SEVERAL = 'raise ExceptionGroup("two", [KeyError("a"), KeyError("b")])'


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
    code, _, said = terminal.run("serve", "app:app", "--port", "0")
    assert code == 1
    assert all(reason in said for reason in told)
    assert told[-1] in said.splitlines()[-1]
    assert "src/shoal" not in said


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_a_start_that_takes_too_long_names_the_option(terminal, placement):
    load = "__import__('time').sleep(0.4 if PLACEMENT == 'thread' else 600)"
    text = missing(placement, load.replace("PLACEMENT", repr(placement)), 0.3)
    (terminal.directory / "app.py").write_text(text)
    code, _, said = terminal.run("serve", "app:app", "--port", "0")
    assert code == 1
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


def test_workers_answer_for_a_server_that_starts(terminal):
    (terminal.directory / "gated.py").write_text(GATED)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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
