"""The clients of others that use OpenAI's protocol, with a server on a socket."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from live_server import live
from openai_app import openai_app

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.one_loop]

PROGRAMS = Path(__file__).parents[1] / "sdk_programs.py"
MODELS = ("records", "steps", "embed", "rank", "classes", "speech", "upper")
CLIENTS = {
    "openai": "openai",
    "agents": "agents",
    "litellm": "litellm",
    "langchain": "langchain_openai",
    "cohere": "cohere",
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client(name):
    if importlib.util.find_spec(CLIENTS[name]) is None:
        pytest.skip(f"{CLIENTS[name]} is not installed")
    async with live(openai_app(models=MODELS), hang_s=110) as server:
        program = [sys.executable, str(PROGRAMS), name, f"http://127.0.0.1:{server.port}"]
        ended = await anyio.run_process(program, check=False, stderr=subprocess.STDOUT)
    assert ended.returncode == 0, ended.stdout.decode()
