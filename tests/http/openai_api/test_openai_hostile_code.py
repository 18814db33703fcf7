"""Errors of the user's code that are no `Exception`, in requests whose calls have own tasks."""

import pytest
from pydantic import BaseModel, field_validator

import shoal
from base_exceptions import Panic, cancellation
from shoal.http.openai.protocol import OpenAI
from shoal.testing.asgi import ask

KINDS = {"panic": Panic, "exit": SystemExit, "generator": GeneratorExit}


class Item(BaseModel):
    prompt: str

    @field_validator("prompt")
    @classmethod
    def _raise(cls, prompt):
        if prompt in KINDS:
            raise KINDS[prompt]
        return prompt


async def texts(items: list[Item]) -> list[str]:
    return [item.prompt for item in items]


async def pieces(items: list[Item]):
    yield [item.prompt for item in items]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("prompt", KINDS)
@pytest.mark.parametrize("handler", [texts, pieces])
async def test_a_validator_of_an_item_ends_only_its_request(handler, prompt, streams, openai):
    openai.endpoint("/m", name="m")(handler)
    asked = {"model": "m", "prompt": prompt, "n": 2, "stream": streams}
    async with openai.lifespan():
        answer = await ask(openai, "/v1/completions", asked)
        assert (answer.status, answer.json()["error"]["type"]) == (500, "server_error")
        answer = await ask(openai, "/v1/completions", {**asked, "prompt": "well"})
        assert answer.status == 200
        endpoint = openai.controller.endpoints["m"]
        assert (endpoint.requests, endpoint.errors) == (2, 1)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_cancellation_that_the_code_has_kept_is_a_failure(count):
    kept = await cancellation()

    def count_tokens(text):
        raise kept

    app = shoal.App(protocols=[OpenAI(count_tokens=count_tokens)])
    app.endpoint("/m", name="m")(texts)
    asked = {"model": "m", "prompt": "a", "n": count, "stream": True}
    async with app.lifespan():
        answer = await ask(app, "/v1/completions", asked)
    assert answer.status == 500 or b"server_error" in answer.body
