"""The AI SDK of Vercel, a client in JavaScript, with a server on a socket.

It needs node, and the client's packages: ``npm ci --prefix tests/http/openai_api/ai_sdk``.
"""

import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest
from live_server import counted, live
from openai_app import openai_app, upper

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.one_loop]

FOLDER = Path(__file__).parent / "ai_sdk"
PAGE = Path(__file__).parents[3] / "docs/how-to/serve-openai-clients.md"
MODELS = ("records", "steps", "words", "upper", "broken", "breaks", "writer", "embed", "speech")


async def busy(prompts: list[str]) -> list[str]:
    if "hold" in prompts[0]:
        await anyio.sleep_forever()
    return prompts


async def run(*args):
    """Runs node in the folder of the packages; returns its output."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (FOLDER / "node_modules").exists():
        pytest.skip(f"no packages: npm ci --prefix {FOLDER}")
    ended = await anyio.run_process(
        [node, *args], check=False, stderr=subprocess.STDOUT, cwd=FOLDER
    )
    assert ended.returncode == 0, ended.stdout.decode()
    return ended.stdout.decode()


async def test_the_ai_sdk():
    app = openai_app(models=MODELS)
    app.endpoint("/busy", name="busy", max_batch_size=1, max_queued_requests=1)(busy)
    async with live(app, hang_s=110) as server:
        await run("program.mjs", f"http://127.0.0.1:{server.port}")
    # The program aborts these calls, and so frees their places.
    assert counted(app)["writer", "openai", "left"] == 2
    assert counted(app)["busy", "openai", "left"] == 4
    assert len(app.writer.steps) < 400  # of 4,000


async def test_the_example_of_the_page(openai):
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^```js\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    openai.endpoint("/agent", name="agent")(upper)
    async with live(openai) as server:
        code = code.replace("localhost:8000", f"127.0.0.1:{server.port}")
        printed = await run("--input-type=module", "--eval", code)
    assert printed == "USER: HOW IS THE WEATHER?\nASSISTANT:\n"
