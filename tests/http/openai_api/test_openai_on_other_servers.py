"""OpenAI's protocol on the servers of others, and mounted, with OpenAI's own client."""

from __future__ import annotations

import importlib.util
from uuid import uuid4

import pytest
from test_served import HANG_S, SERVERS, serving

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

# `test_served` has them all.
NAMES = ["hypercorn on trio", "granian", "uvicorn, mounted"]


@pytest.fixture(scope="module", params=NAMES)
def served(request):
    module = SERVERS[request.param][0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    with serving(request.param, "served_models") as running:
        yield running


@pytest.fixture
def client(served):
    import openai

    url = f"{served.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANG_S) as client:
        yield client


def test_a_chat_is_answered(client):
    assert "held" in [model.id for model in client.models.list()]
    messages = [{"role": "user", "content": "hi"}]
    found = client.chat.completions.create(model="upper", messages=messages, n=2)
    texts = [choice.message.content for choice in found.choices]
    assert texts == ["USER: HI\nASSISTANT:"] * 2


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_is_sent_as_it_is_made(n, served, client):
    name = uuid4().hex
    asked = {"model": "held", "prompt": name, "n": n, "stream": True}
    with client.completions.create(**asked) as stream:
        chunks = iter(stream)
        first = next(chunks)
        assert first.choices[0].text == "one "
        served.post("/tell", name)
        rest = list(chunks)
    texts = ["", ""]
    for chunk in [first, *rest]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts[:n] == ["one two"] * n
    assert [chunk.choices[0].finish_reason for chunk in rest].count("stop") == n


def test_a_client_that_leaves_a_stream_frees_its_place(served, client):
    name, next_name = uuid4().hex, uuid4().hex
    with client.completions.create(model="held", prompt=name, stream=True) as stream:
        assert next(iter(stream)).choices[0].text == "one "
    assert served.post("/when", f"{name} ended").json() is True
    # The model takes one text at a time: another one is only written if its place is free.
    served.post("/tell", next_name)
    found = client.completions.create(model="held", prompt=next_name)
    assert found.choices[0].text == "one two"
