"""`shoal serve --reload`: real processes, and files that change under them."""

import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import ask, end_of

from shoal.cli import main
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

APP = """\
import shoal

app = shoal.App()


@app.endpoint("/version")
async def version(items: list[int]) -> list[str]:
    return ["first"] * len(items)


@app.endpoint("/hold")
def hold(paths: list[str]) -> list[str]:
    with open(paths[0]) as fifo:
        return [f"first {fifo.read()}"]
"""


class Reloaded:
    """The command, and what it says."""

    def __init__(self, terminal, *arguments):
        self.file = terminal.directory / "mine.py"
        self.process = terminal.popen("serve", *arguments, "--reload", start_new_session=True)
        self._hang = threading.Timer(2 * HANG_S, self.kill)
        self._hang.start()

    def until(self, mark):
        said = []
        while not said or mark not in said[-1]:
            said.append(self.process.stderr.readline())
            assert said[-1], "".join(said)
        return "".join(said)

    def change(self, old, new):
        source = self.file.read_text()
        assert old in source
        self.file.write_text(source.replace(old, new))

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)

    def close(self):
        self._hang.cancel()
        if self.process.poll() is None:
            self.kill()
        self.process.communicate()


@pytest.fixture
def reloading(terminal):
    (terminal.directory / "mine.py").write_text(APP)
    opened = []

    def reloading(*arguments, app="mine:app"):
        opened.append(Reloaded(terminal, app, *arguments))
        return opened[-1]

    yield reloading
    for one in opened:
        one.close()


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_changed_application_is_served_after_running_requests(reloading, terminal, loop, port):
    served = reloading("--port", str(port), "--event-loop", loop)
    served.until("Shoal serving ")
    assert ask(port, "/version", 1) == (200, "first")
    fifo = str(terminal.directory / "fifo")
    os.mkfifo(fifo)
    with ThreadPoolExecutor() as threads:
        held = threads.submit(ask, port, "/hold", fifo)
        with open(fifo, "w") as release:  # once it runs
            served.change("first", "second!")
            served.until("Shoal is reloading: mine.py changed")
            release.write("held")
        assert held.result() == (200, "first held")
    served.until("Shoal serving ")
    assert ask(port, "/version", 1) == (200, "second!")
    said = end_of(served.process, signal.SIGTERM)
    assert "Traceback" not in said
    assert said.count("requests, drained in ") == 1


def test_an_application_that_can_not_be_imported_is_served_once_it_is_corrected(reloading, port):
    served = reloading("--port", str(port))
    served.until("Shoal serving ")
    served.change("async def", "async deaf")
    assert "SyntaxError" in served.until("importing mine:app failed, see above")
    served.change("async deaf", "async def")
    served.until("Shoal serving ")
    assert ask(port, "/version", 1) == (200, "first")


def test_ctrl_c_of_a_terminal_ends_it(reloading, port):
    """It reaches all processes of the terminal's group."""
    served = reloading("--port", str(port))
    served.until("Shoal serving ")
    os.killpg(served.process.pid, signal.SIGINT)
    end_of(served.process)
    with socket.socket() as after, pytest.raises(ConnectionRefusedError):
        after.connect(("127.0.0.1", port))


def test_a_file_of_an_application_is_watched_too(reloading, terminal):
    path = terminal.directory / "app.toml"
    path.write_text('[server]\nuds = "s"\n[backends.v]\ncode = "mine:version"\n')
    served = reloading(app="app.toml")
    served.until("Shoal serving app.toml on unix:")
    path.write_text(path.read_text() + "[backends.w]\ncode = 1\n")
    served.until("app.toml changed")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--reload", "--reload-dir", "nowhere"], 2, "--reload-dir: nowhere is not a directory"),
        (["--reload-dir", "."], 2, "--reload-dir needs --reload"),
    ],
)
def test_a_mistake_is_said(words, code, message, capsys):
    assert main(["serve", "mine:app", *words]) == code
    assert message in capsys.readouterr().err


def test_what_is_not_installed_is_said(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert main(["serve", "mine:app", "--reload"]) == 1
    assert "--reload needs watchfiles, which is not installed" in capsys.readouterr().err


def test_files_that_can_not_be_watched_are_said(capsys, monkeypatch, tmp_path):
    def watch(*_, **__):
        raise OSError("OS file watch limit reached.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("watchfiles.run_process", watch)
    assert main(["serve", "mine:app", "--reload", "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert "can't watch .: OS file watch limit reached.; see --reload-dir" in said
