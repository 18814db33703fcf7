"""`shoal serve --reload`: real processes, and files that change under them."""

import http.client
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import ask, end_of

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

    def port(self):
        return int(self.until("Shoal serving ").rpartition(":")[2])

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


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_requests_finish_and_none_is_refused(reloading, terminal, loop):
    served = reloading("--port", "0", "--event-loop", loop)
    port = served.port()
    assert ask(port, "/version", 1) == (200, "first")
    fifo = str(terminal.directory / "fifo")
    os.mkfifo(fifo)
    threads = ThreadPoolExecutor()
    held = threads.submit(ask, port, "/hold", fifo)
    with threads, open(fifo, "w") as release:  # once it runs
        served.change("first", "second")
        served.until("Shoal is reloading: mine.py changed")
        body = b"1"
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as client:
            client.sendall(
                b"POST /version HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1\r\nConnection: close\r\n\r\n" + body
            )
            release.write("held")
            release.close()
            answer = client.makefile("rb").read()
    assert held.result() == (200, "first held")
    # Of the two versions, the one that has accepted the connection answers.
    assert answer.endswith((b'"first"', b'"second"'))
    assert served.port() == port
    assert ask(port, "/version", 1) == (200, "second")
    assert_has_ended(served, signal.SIGINT)


def assert_has_ended(served, signum=None):
    said = end_of(served.process, signum)
    assert "Traceback" not in said
    assert said.count("requests, drained in ") == 1


def test_a_version_that_can_not_be_imported_changes_nothing(reloading, terminal):
    # Python would take its bytecode, of the version before, for current.
    terminal.environment.pop("PYTHONDONTWRITEBYTECODE", None)
    served = reloading("--port", "0")
    port = served.port()
    served.change("async def", "async deaf")
    said = served.until("Shoal goes on with the version before")
    assert "SyntaxError" in said
    assert "served" not in said, "the version before was ended"
    assert ask(port, "/version", 1) == (200, "first")
    served.file.write_text(APP.replace("first", "third"))
    assert served.port() == port
    assert ask(port, "/version", 1) == (200, "third")
    # A file that is saved twice within a second is served as it is.
    saved = served.file.with_suffix(".saved")
    saved.write_text(APP.replace("first", "later"))
    of_before = served.file.stat()
    os.utime(saved, ns=(of_before.st_atime_ns, of_before.st_mtime_ns))
    assert saved.stat().st_size == of_before.st_size
    saved.replace(served.file)
    assert served.port() == port
    assert ask(port, "/version", 1) == (200, "later")


def test_a_first_version_that_can_not_be_imported_is_waited_for(reloading, terminal):
    terminal.directory.joinpath("mine.py").write_text("import nothing_of_that_name\n")
    served = reloading("--port", "0")
    said = served.until("Shoal is waiting for a change")
    assert "nothing_of_that_name" in said
    served.file.write_text(APP)
    assert ask(served.port(), "/version", 1) == (200, "first")


def test_clients_wait_while_a_version_does_not_start(reloading):
    served = reloading("--port", "0")
    port = served.port()
    failing = '\n\n@app.endpoint("/x")\nclass X:\n    y = 1 / len("")\n'
    lazily = failing.replace("    y = 1 / len", "    def __init__(self):\n        1 / len")
    call = "\n    def __call__(self, items: list[int]) -> list[int]:\n        return items\n"
    served.file.write_text(APP.replace("first", "second") + lazily + call)
    said = served.until("is waiting for a change")
    assert "ZeroDivisionError" in said
    assert "ended with exit code 1" in said
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, port, "/version", 1)
        served.file.write_text(APP.replace("first", "third"))
        assert answer.result() == (200, "third")


def test_ctrl_c_of_a_terminal_ends_it(reloading):
    """It reaches all processes of the terminal's group."""
    served = reloading("--port", "0")
    port = served.port()
    os.killpg(served.process.pid, signal.SIGINT)
    assert_has_ended(served)
    with socket.socket() as after, pytest.raises(ConnectionRefusedError):
        after.connect(("127.0.0.1", port))


def test_ctrl_c_ends_it_while_it_waits(reloading, terminal):
    terminal.directory.joinpath("mine.py").write_text("1 / 0\n")
    served = reloading("--port", "0")
    served.until("is waiting for a change")
    end_of(served.process, signal.SIGINT, code=130)


def test_a_second_signal_ends_it_at_once(reloading, terminal):
    served = reloading("--port", "0")
    port = served.port()
    fifo = str(terminal.directory / "fifo")
    os.mkfifo(fifo)
    threads = ThreadPoolExecutor()
    held = threads.submit(ask, port, "/hold", fifo)
    with threads, open(fifo, "w"):  # once it runs
        served.process.send_signal(signal.SIGINT)
        served.process.send_signal(signal.SIGTERM)
        served.process.communicate(timeout=HANG_S)
    assert served.process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert isinstance(held.exception(), (OSError, http.client.HTTPException))


def test_it_leaves_no_process_if_it_is_killed(reloading):
    served = reloading("--port", "0")
    served.port()
    served.process.kill()
    said = served.process.stderr.read()  # its end: nobody has it open any more
    assert "requests, drained in " in said


@pytest.mark.skipif(sys.platform != "linux", reason="others have no 127.0.0.2")
def test_a_name_is_served_at_all_its_addresses(reloading, terminal):
    hosts = ["127.0.0.1", "127.0.0.2"]
    names = [(int(socket.AF_INET), 1, 6, "", (host, 0)) for host in hosts]
    (terminal.directory / "sitecustomize.py").write_text(
        f"import socket\nsocket.getaddrinfo = lambda *_, **__: {names!r}\n"
    )
    terminal.environment["PYTHONPATH"] = str(terminal.directory)
    served = reloading("--host", "name", "--port", "0", "--allow-host", "*")
    port = served.port()
    assert [ask(port, "/version", 1, host) for host in hosts] == [(200, "first")] * 2


def test_a_file_is_served_at_its_address(reloading, terminal):
    path = terminal.directory / "app.toml"
    good = '[server]\nuds = "s"\n[backends.v]\ncode = "mine:version"\n'
    path.write_text(good)
    served = reloading(app="app.toml")
    assert "Shoal serving app.toml on unix:" in served.until("Shoal serving ")
    path.write_text(good + "[backends.w]\ncode = 1\n")
    assert "app.toml changed" in served.until("goes on with the version before")
    path.write_text(good)
    served.until("Shoal serving ")
    served.change("async def", "async deaf")
    assert "SyntaxError" in served.until("goes on with the version before")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--reload", "--reload-dir", "nowhere"], 2, "--reload-dir: nowhere is not a directory"),
        (["--reload-dir", "."], 2, "--reload-dir needs --reload"),
    ],
)
def test_a_mistake_is_said(words, code, message, mistake):
    assert message in mistake("serve", "mine:app", *words, code=code)


def test_an_address_in_use_is_said(mistake):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = mistake("serve", "mine:app", "--reload", "--port", port)
    assert f"can't listen at 127.0.0.1 port {port}: Address already in" in said


def test_what_is_not_installed_is_said(mistake, monkeypatch):
    monkeypatch.setattr("shoal.core.extras.find_spec", lambda name: None)
    said = mistake("serve", "mine:app", "--reload")
    assert "--reload needs watchfiles, which is not installed" in said


def test_files_that_can_not_be_watched_are_said(mistake, monkeypatch, tmp_path):
    def watch(*_, **__):
        raise OSError("OS file watch limit reached.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("watchfiles.watch", watch)
    said = mistake("serve", "mine:app", "--reload", "--port", "0")
    assert "can't watch .: OS file watch limit reached.; see --reload-dir" in said
