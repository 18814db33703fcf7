"""Model servers and servers that forward to them, as processes that are killed or get signals."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress

import anyio
import pytest
from processes import HANG_S, ask

from progress_lines import first_line
from shoal.serving.controller.controller import Controller
from shoal.testing.replicas.code import Folder
from worker_processes import until

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
HOLDING = """\
import os

import shoal
from shoal.testing.replicas.code import Folder

app = shoal.App()
folder = Folder(os.path.dirname(__file__))


@app.endpoint("/model", max_concurrent_batches=16)
async def model(items: list[str]) -> list[int]:
    if "held" in items:
        folder.note(str(os.getpid()))
        await folder.wait_async("on")
    return [os.getpid() for _ in items]
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
    said = terminal.failed("serve", "other.py", "--model-server", "unix:m.sock", code=2)
    assert "other.py is not a shoal.App" in said
    (directory / "short").write_text("short")
    at = ["--port", "0", "--model-server", "tcp://127.0.0.1:0", "--model-server-token-file"]
    said = terminal.failed("serve", "app.py", *at, "short")
    assert "the token of model servers must have at least 32 characters" in said
    said = terminal.failed("serve", "app.py", *at, "nothing")
    assert "can't use the token in nothing: No such file" in said


@contextmanager
def two_model_servers(directory):
    """Runs two of them; yields the process of each by its id, and the config of a backend."""
    (directory / "app.py").write_text(HOLDING)
    (directory / "token").write_text("0123456789" * 4)
    command = [sys.executable, "-m", "shoal", "serve", "app.py", "--port", "0", "--model-server"]
    token = ["--model-server-token-file", "token"]
    servers = [
        subprocess.Popen(
            [*command, "tcp://127.0.0.1:0", *token],
            cwd=directory,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for one in servers:
            first_line(one.stderr)
        addresses = [first_line(one.stderr).split()[-1] for one in servers]
        yield (
            {one.pid: one for one in servers},
            {
                "placement": "remote",
                "model_servers": addresses,
                "model_server_token_file": str(directory / "token"),
            },
        )
    finally:
        for one in servers:
            one.kill()
            one.communicate()


@asynccontextmanager
async def ingress(config):
    async with Controller() as controller, anyio.create_task_group() as tasks:
        await controller.create_backend("model", "app:model", config=config)
        await controller.create_endpoint("model", backend="model")
        yield controller, await controller.get_handle("model"), tasks


@pytest.mark.one_loop
async def test_one_that_is_told_to_stop_finishes_its_batches_and_gets_no_more(tmp_path):
    held, folder = list[int](), Folder(str(tmp_path))
    with two_model_servers(tmp_path) as (servers, config):
        async with ingress({**config, "retries": 0}) as (_, handle, tasks):

            async def hold() -> None:
                held.append(await handle.call("held"))

            async def hold_another() -> None:
                count = len(folder.notes())
                tasks.start_soon(hold)
                await until(lambda: len(folder.notes()) > count)

            while len({*Counter(folder.notes()).values()}) < 2:
                await hold_another()
            counts = Counter(folder.notes())
            # The one with fewer batches is the ingress's first choice.
            leaving = int(counts.most_common()[-1][0])
            assert await handle.call("at once") == leaving
            servers[leaving].send_signal(signal.SIGTERM)
            in_a_row = 0
            while in_a_row < 50:
                in_a_row = 0 if await handle.call("at once") == leaving else in_a_row + 1
            assert servers[leaving].poll() is None
            folder.release("on")
            await until(lambda: len(held) == counts.total())
            assert Counter(map(str, held)) == counts
            assert await anyio.to_thread.run_sync(servers[leaving].wait) == 0


@pytest.mark.one_loop
@pytest.mark.slow
async def test_one_that_is_frozen_delays_calls_by_ten_seconds_by_default(tmp_path):
    pids = Counter[int]()
    longest_s = 0.0
    with two_model_servers(tmp_path) as (_, config):
        async with ingress({**config, "retries": 1}) as (controller, handle, tasks):

            async def call() -> None:
                nonlocal longest_s
                while True:
                    began = time.monotonic()
                    pids[await handle.call("at once")] += 1
                    longest_s = max(longest_s, time.monotonic() - began)
                    await anyio.sleep(0.01)

            def states() -> list[str]:
                status = controller.status_now().backends["model"]
                return sorted(one.state for one in status.replicas)

            for _ in range(4):
                tasks.start_soon(call)
            await until(lambda: len(pids) == 2)
            frozen = min(pids)
            os.kill(frozen, signal.SIGSTOP)
            await until(lambda: states() == ["ready", "starting"])
            before = pids.copy()
            # Those that waited for it run again elsewhere.
            await until(lambda: pids.total() > before.total() + 100)
            assert pids[frozen] == before[frozen]
            os.kill(frozen, signal.SIGCONT)
            await until(lambda: states() == ["ready"] * 2 and pids[frozen] > before[frozen])
            assert longest_s < 15
            tasks.cancel_scope.cancel()
