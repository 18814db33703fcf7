"""OpenAI's own client, and those of others that use its protocol, with a server on a socket.

The AI SDK of Vercel needs node, and its packages: ``npm ci --prefix tests/http/openai_api/ai_sdk``.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import pytest
from live_server import counted, live
from openai_app import events, openai_app, upper

from time_limits import HANG_S

pytestmark = pytest.mark.real_time

HI = [{"role": "user", "content": "hi you there"}]
FOLDER = Path(__file__).parent / "ai_sdk"
PAGE = Path(__file__).parents[3] / "docs/how-to/serve-openai-clients.md"
PROGRAMS = Path(__file__).parents[1] / "sdk_programs.py"
CLIENTS = {
    "openai": "openai",
    "agents": "agents",
    "litellm": "litellm",
    "langchain": "langchain_openai",
    "cohere": "cohere",
}
MODELS = ("records", "steps", "upper", "embed", "speech")


@pytest.fixture
async def app():
    return openai_app()


@pytest.fixture
async def url(app):
    async with live(app) as server:
        yield f"http://127.0.0.1:{server.port}/v1"


def use_client(url):
    """What a program does with the client."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANG_S) as client:
        names = [model.id for model in client.models.list()]
        assert "upper" in names
        assert client.models.retrieve("upper").id == "upper"

        whole = client.completions.create(model="upper", prompt="a b", max_tokens=1)
        assert whole.choices[0].text == "A"
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage.total_tokens == 3

        chat = client.chat.completions.create(model="talk", messages=HI, n=2)
        assert [choice.message.content for choice in chat.choices] == ["user hi you there"] * 2
        assert chat.choices[0].message.role == "assistant"

        with client.completions.create(model="words", prompt="a b c", stream=True) as stream:
            assert [chunk.choices[0].text for chunk in stream] == ["a ", "b ", "c ", ""]

        with client.chat.completions.create(
            model="words",
            messages=HI,
            n=2,
            stop="the",
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            chunks = list(stream)
        assert chunks[-1].usage.completion_tokens == 8  # with those of the stop sequences
        for index in (0, 1):
            mine = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
            assert mine[0].delta.role == "assistant"
            assert "".join(one.delta.content or "" for one in mine) == "user: hi you "
            assert mine[-1].finish_reason == "stop"

        vectors = client.embeddings.create(model="embed", input=["a", "bc"])
        assert [one.embedding for one in vectors.data] == [[1.0, 0.5], [2.0, 0.5]]
        vectors = client.embeddings.create(model="embed", input="abc", encoding_format="float")
        assert vectors.data[0].embedding == [3.0, 0.5]

        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="gpt", prompt="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(model="upper", messages=HI, logprobs=True)
        assert wrong.value.param == "logprobs"
        with pytest.raises(openai.InternalServerError, match="The call failed"):
            client.completions.create(model="broken", prompt="a")
        with (
            pytest.raises(openai.APIError, match="The call failed"),
            client.completions.create(model="breaks", prompt="a", stream=True) as stream,
        ):
            list(stream)


@pytest.mark.slow
async def test_the_client(url, caplog):
    await anyio.to_thread.run_sync(use_client, url)


@pytest.fixture
async def client(url):
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield client


async def test_a_client_that_does_not_read_loses_nothing(client):
    long = " ".join(f"{nth:08000}" for nth in range(300))
    asked = {"model": "words", "prompt": long, "stream": True, "stop": ["00299"]}
    asked |= {"stream_options": {"include_usage": True}}
    async with client.stream("POST", "/completions", json=asked) as answer:
        await anyio.sleep(0.05)
        *pieces, last, _done = events(await answer.aread())
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == long.removesuffix("00299")
    assert last["usage"]["completion_tokens"] == 300


async def test_a_text_that_has_ended_frees_its_place_while_the_handler_sends(app, client):
    for more in ({"max_tokens": 3}, {"stop": ["d"]}, {"stop": ["c d"]}):
        app.writer.steps.clear()
        asked = {"model": "writer", "prompt": "a b c d e f g h", "stream": True, **more}
        answer = await client.post("/completions", json=asked)
        assert '"text":"e' not in answer.text
        assert len([one for one in app.writer.steps if one]) == 3 + ("stop" in more)


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client(name):
    if importlib.util.find_spec(CLIENTS[name]) is None:
        pytest.skip(f"{CLIENTS[name]} is not installed")
    async with live(openai_app(models=(*MODELS, "rank", "classes")), hang_s=110) as server:
        program = [sys.executable, str(PROGRAMS), name, f"http://127.0.0.1:{server.port}"]
        ended = await anyio.run_process(program, check=False, stderr=subprocess.STDOUT)
    assert ended.returncode == 0, ended.stdout.decode()


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


@pytest.mark.slow
@pytest.mark.one_loop
async def test_the_ai_sdk():
    app = openai_app(models=(*MODELS, "words", "broken", "breaks", "writer"))
    app.endpoint("/busy", name="busy", max_batch_size=1, max_queued_requests=1)(busy)
    async with live(app, hang_s=110) as server:
        await run("program.mjs", f"http://127.0.0.1:{server.port}")
    # The program aborts these calls, and so frees their places.
    assert counted(app)["writer", "openai", "left"] == 2
    assert counted(app)["busy", "openai", "left"] == 4
    assert len(app.writer.steps) < 400  # of 4,000


@pytest.mark.slow
@pytest.mark.one_loop
async def test_the_example_of_the_page(openai):
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^```js\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    openai.endpoint("/agent", name="agent")(upper)
    async with live(openai) as server:
        code = code.replace("localhost:8000", f"127.0.0.1:{server.port}")
        printed = await run("--input-type=module", "--eval", code)
    assert printed == "USER: HOW IS THE WEATHER?\nASSISTANT:\n"
