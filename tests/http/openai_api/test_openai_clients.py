"""OpenAI's own client, and texts that end, with a server on a socket."""

import anyio
import httpx
import pytest
from live_server import live
from openai_app import events, openai_app

from time_limits import HANG_S

pytestmark = pytest.mark.real_time

HI = [{"role": "user", "content": "hi you there"}]


@pytest.fixture
async def app():
    return openai_app()


@pytest.fixture
async def url(app):
    async with live(app) as server:
        yield f"http://127.0.0.1:{server.port}/v1"


def use_client(url):
    """What a program does with the client."""
    import openai

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
