"""The demo's language model, as OpenAI's client is served by it."""

import anyio.to_thread
import pytest
from anyio import create_task_group

from examples.language_model.generate import generate
from examples.language_model.model import CharTransformer
from examples.language_model.served import app
from examples.language_model.writing import Prompt
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from time_limits import HANG_S

# The model's steps run in a thread.
pytestmark = [pytest.mark.real_time, pytest.mark.slow]


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
    prompt = Prompt(text="Return the ", max_tokens=40, temperature=0)
    text = "".join(one for (one,) in generate(CharTransformer.load(), [prompt]))
    served, urls = anyio.Event(), []

    def started(url):
        urls.append(url)
        served.set()

    async with create_task_group() as tasks:
        stop = anyio.Event()

        async def run():
            options = HttpOptions(port=0)
            await serve(app, options, shutdown=stop.wait, on_listening=started)

        tasks.start_soon(run)
        await served.wait()
        found = await anyio.to_thread.run_sync(use_client, urls[0].rstrip("/") + "/")
        stop.set()
    assert found == (text, text, {text}, text.partition(" o")[0])
