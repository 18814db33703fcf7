"""Model servers and servers that forward to them, as processes that are killed under load."""

import signal
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import pytest
from processes import HANG_S, ask

from progress_lines import first_line

pytestmark = pytest.mark.real_time

CLIENTS = 8
TOKEN = "0123456789" * 4
APP = """\
import os

import anyio
import shoal

app = shoal.App()


@app.endpoint("/embed", max_batch_size=16)
class Embed:
    loads = 0

    def __init__(self) -> None:
        Embed.loads += 1

    async def __call__(self, items: list[int]) -> list[list[int]]:
        await anyio.sleep(0.02)
        return [[item, os.getpid(), self.loads] for item in items]
"""
INGRESS = """\
[backends.Embed]
code = "models:Embed"
placement = "remote"
model_servers = ["file:{directory}/models.txt"]
model_server_token_file = "token"
retries = 1
health_check_period_s = 1

[endpoints.embed]
backend = "Embed"
route = "/embed"
"""


class Load:
    """Clients that call until they are stopped; what they got, and what went wrong."""

    def __init__(self, ports):
        self.ports = ports
        self.pids = []
        self.answered = Counter()
        self.loads = []
        self.errors = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(ports[n % len(ports)], n))
            for n in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, port, number):
        while not self._is_over.is_set():
            try:
                status, answer = ask(port, "/embed", number)
            except OSError as error:
                self.errors.append((port, repr(error)))
                return
            if status == 200 and answer[0] == number:
                self.pids.append(answer[1])
                self.answered[port, answer[1]] += 1
                self.loads.append(answer[2])
            else:
                self.errors.append((port, status, answer))

    def wait_for(self, pid, more=15):
        """Waits until a model server has answered some more calls of each ingress."""
        enough = {port: self.answered[port, pid] + more for port in self.ports}
        self._wait(lambda: all(self.answered[port, pid] >= enough[port] for port in enough))

    def wait_for_any(self, more=60):
        before = len(self.pids)
        self._wait(lambda: len(self.pids) >= before + more)

    def _wait(self, is_so):
        limit = threading.Event()
        for _ in range(HANG_S * 50):
            if is_so():
                return
            limit.wait(0.02)
        raise AssertionError(f"nothing more was answered: {self.errors[:3]}")

    def stop(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def model_server(terminal, number):
    """Runs a model server; gives its process."""
    at = f"unix:{terminal.directory}/{number}.sock"
    arguments = ["app.py", "--port", "0", "--model-server", at]
    with terminal.serving("serve", *arguments, "--model-server-token-file", "token") as (one, _):
        line = first_line(one.stderr)
        assert line == f"Shoal serving its backends to other Shoal servers at {at}\n"
        threading.Thread(target=_drain, args=(one.stderr,), daemon=True).start()
        yield one


def _drain(stream):
    with suppress(ValueError):  # it was closed
        for _ in stream:
            pass


@pytest.fixture
def directory(terminal):
    directory = terminal.directory
    (directory / "app.py").write_text(APP)
    (directory / "token").write_text(TOKEN)
    (directory / "ingress.toml").write_text(INGRESS.format(directory=directory))
    (directory / "models.txt").write_text("".join(f"unix:{directory}/{n}.sock\n" for n in (1, 2)))
    return directory


@pytest.mark.slow
@pytest.mark.usefixtures("directory")
def test_killed_model_servers_and_rolling_updates_lose_nothing(terminal):
    with ExitStack() as running:
        first = running.enter_context(model_server(terminal, 1))
        second = running.enter_context(model_server(terminal, 2))
        ports = []
        for _ in range(2):
            serving = terminal.serving("serve", "ingress.toml", "--port", "0")
            ingress, port = running.enter_context(serving)
            threading.Thread(target=_drain, args=(ingress.stderr,), daemon=True).start()
            ports.append(port)
        load = Load(ports)
        running.callback(load.stop)
        load.wait_for(first.pid)
        load.wait_for(second.pid)
        # One is killed, and comes back.
        first.kill()
        load.wait_for(second.pid)
        first = running.enter_context(model_server(terminal, 1))
        load.wait_for(first.pid)
        # A rolling update: each is asked to end, and is replaced.
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=HANG_S) == 0
        first = running.enter_context(model_server(terminal, 1))
        load.wait_for(first.pid)
        second.send_signal(signal.SIGTERM)
        assert second.wait(timeout=HANG_S) == 0
        load.wait_for_any()
        assert load.errors == []
        # An ingress and a model server are killed at once: the ingress's own clients lose their
        # calls, and nobody else. The other model server keeps its models.
        second = running.enter_context(model_server(terminal, 2))
        load.wait_for(second.pid)
        load.ports = ports[:1]
        ingress.kill()
        second.kill()
        load.wait_for(first.pid)
        load.stop()
        assert {port for port, *_ in load.errors} == {ports[1]}
        assert len(load.errors) <= CLIENTS // 2
        assert first.poll() is None
        assert set(load.loads) == {1}


def test_a_command_that_can_not_be_a_model_server_says_why(terminal, directory):
    (directory / "other.py").write_text("async def app(scope, receive, send): ...\n")
    code, _, said = terminal.run("serve", "other.py", "--model-server", "unix:m.sock")
    assert code == 2
    assert "other.py is not a shoal.App" in said
    (directory / "short").write_text("short")
    at = ["--port", "0", "--model-server", "tcp://127.0.0.1:0", "--model-server-token-file"]
    code, _, said = terminal.run("serve", "app.py", *at, "short")
    assert code == 1
    assert "the token of model servers must have at least 32 characters" in said
    code, _, said = terminal.run("serve", "app.py", *at, "nothing")
    assert code == 1
    assert "can't use the token in nothing: No such file" in said
