"""The language model behind a continuous batch, and as OpenAI's client is served by it.

Prompts join and leave between two steps.
"""

import anyio
import pytest

import shoal
from examples.language_model.continuous import TEXTS_AT_ONCE, ContinuousTextGenerator
from examples.language_model.generate import generate
from examples.language_model.model import CharTransformer
from examples.language_model.served import app
from examples.language_model.writing import Prompt
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from time_limits import HANG_S

# The model's steps run in a thread.
pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@pytest.fixture
async def write(model):
    handler = ContinuousTextGenerator(model)
    async with shoal.Batcher(
        handler, fill="continuous", streams=True, max_batch_size=TEXTS_AT_ONCE
    ) as call:
        yield call


def alone(model, prompt):
    return "".join(slot for (slot,) in generate(model, [prompt]) if slot is not shoal.END)


async def read(write, prompt, texts, key):
    async with write(prompt) as stream:
        texts[key] = "".join([character async for character in stream])


def endless(nth):
    return Prompt(text="Return the ", max_tokens=5_000, temperature=0, seed=nth)


async def test_what_is_written_does_not_depend_on_who_joins_and_leaves(model, write, rows):
    prompts = [
        Prompt(text="Return the "[:nth], max_tokens=5 + 7 * nth % 60, temperature=1, seed=nth)
        for nth in range(20)
    ]
    texts = {}
    async with anyio.create_task_group() as tasks:
        for key, prompt in enumerate(prompts):
            tasks.start_soon(read, write, prompt, texts, key)
    assert max(rows) == TEXTS_AT_ONCE
    assert texts == {key: alone(model, prompt) for key, prompt in enumerate(prompts)}


async def test_a_prompt_that_comes_later_joins_those_that_are_being_written(write, rows):
    async with write(endless(0)) as stream:
        await anext(stream)
        texts = {}
        await read(write, Prompt(max_tokens=5, temperature=0), texts, "later")
        assert texts["later"]
        await anext(stream)
    assert max(rows) == 2


async def test_a_reader_that_leaves_frees_its_place_at_once(write, rows):
    texts = {}
    async with anyio.create_task_group() as tasks:
        first = write(endless(0))
        async with first:
            for nth in range(1, TEXTS_AT_ONCE):
                tasks.start_soon(read, write, endless(nth), texts, nth)
            while rows[-1:] != [TEXTS_AT_ONCE]:
                await anext(first)
        await read(write, Prompt(max_tokens=5, temperature=0), texts, "in its place")
        assert texts.keys() == {"in its place"}
        tasks.cancel_scope.cancel()
    assert max(rows) == TEXTS_AT_ONCE


def use_client(url):
    """What is written for a prompt: whole, streamed, several at once, and as a chat."""
    import openai

    asked = {"model": "language-model", "max_tokens": 40, "temperature": 0}
    with openai.OpenAI(
        base_url=f"{url}v1", api_key="none", max_retries=0, timeout=HANG_S
    ) as client:
        assert [model.id for model in client.models.list()] == ["language-model"]
        whole = client.completions.create(prompt="Return the ", **asked)
        assert whole.usage.prompt_tokens == len("Return the ")
        assert whole.usage.completion_tokens == len(whole.choices[0].text) == 40
        assert whole.choices[0].finish_reason == "length"
        with client.completions.create(prompt="Return the ", stream=True, **asked) as stream:
            streamed = "".join(chunk.choices[0].text for chunk in stream)
        several = client.completions.create(prompt=["Return the "] * 12, **asked)
        chat = client.chat.completions.create(
            messages=[{"role": "user", "content": "Return the "}], stop=[" o"], **asked
        )
    return (
        whole.choices[0].text,
        streamed,
        {choice.text for choice in several.choices},
        chat.choices[0].message.content,
    )


async def test_the_client_gets_what_the_model_writes():
    pytest.importorskip("openai")
    prompt = Prompt(text="Return the ", max_tokens=40, temperature=0)
    text = "".join(one for (one,) in generate(CharTransformer.load(), [prompt]))
    served, urls = anyio.Event(), []

    def started(url):
        urls.append(url)
        served.set()

    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()

        async def run():
            options = HttpOptions(port=0)
            await serve(app, options, shutdown=stop.wait, on_listening=started)

        tasks.start_soon(run)
        await served.wait()
        found = await anyio.to_thread.run_sync(use_client, urls[0].rstrip("/") + "/")
        stop.set()
    assert found == (text, text, {text}, text.partition(" o")[0])
