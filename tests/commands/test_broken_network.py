"""A network namespace as another machine, whose network breaks under load."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import anyio
import pytest

from progress_lines import first_line
from shoal.serving.controller.controller import Controller

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.one_loop,
    pytest.mark.skipif(
        os.getuid() != 0 or shutil.which("ip") is None, reason="needs network namespaces"
    ),
]
TOKEN = "0123456789" * 4
APP = """\
import os

import shoal

app = shoal.App()


@app.endpoint("/model")
async def model(items: list[int]) -> list[int]:
    return [os.getpid() for _ in items]
"""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def other_machine(name):
    """Makes a namespace with a link to it, which has the addresses 10.78.0.1 and 10.78.0.2."""
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces are not permitted here")
    try:
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        ip("addr", "add", "10.78.0.1/24", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("-n", name, "addr", "add", "10.78.0.2/24", "dev", f"{name}b")
        ip("-n", name, "link", "set", f"{name}b", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        ip("netns", "del", name)


@contextmanager
def model_server(directory, at, *prefix):
    command = [sys.executable, "-m", "shoal", "serve", "app.py", "--port", "0"]
    at = ["--model-server", at, "--model-server-token-file", "token"]
    process = subprocess.Popen(
        [*prefix, *command, *at], cwd=directory, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first_line(process.stderr).startswith("Shoal serving app.py")
        assert "to other Shoal servers" in first_line(process.stderr)
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_network_that_breaks_loses_nothing_and_is_noticed_in_seconds(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "token").write_text(TOKEN)
    far, near = "plain-tcp://10.78.0.2:9000", f"unix:{tmp_path}/near"
    config = {
        "placement": "remote",
        "model_servers": [far, near],
        "model_server_token_file": str(tmp_path / "token"),
        "retries": 1,
    }
    with (
        other_machine("shoal0") as _,
        model_server(tmp_path, far, "ip", "netns", "exec", "shoal0"),
        model_server(tmp_path, near) as local,
    ):
        async with Controller() as controller:
            await controller.create_backend("model", "app:model", config=config)
            await controller.create_endpoint("model", backend="model")
            handle = await controller.get_handle("model")
            pids = set()
            with anyio.fail_after(10):
                while len(pids) < 2:
                    pids |= set(await handle.map(range(4)))
            ip("link", "set", "shoal0a", "down")
            longest_s = 0.0
            until = time.monotonic() + 8
            while time.monotonic() < until:
                began = time.monotonic()
                await handle.map(range(4))
                longest_s = max(longest_s, time.monotonic() - began)
                await anyio.sleep(0.05)
            assert longest_s < 7.5
            assert set(await handle.map(range(4))) == {local.pid}
            assert controller.backends["model"].status().deaths == 1
