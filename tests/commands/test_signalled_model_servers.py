"""Model servers as processes that get signals: one is told to stop, and one is frozen."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

from progress_lines import first_line
from shoal.serving.controller.controller import Controller
from shoal.testing.replicas.code import Folder
from worker_processes import until

pytestmark = [pytest.mark.real_time, pytest.mark.one_loop]

APP = """\
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


@contextmanager
def two_model_servers(directory):
    """Runs two of them; yields the process of each by its id, and the config of a backend."""
    (directory / "app.py").write_text(APP)
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
