"""The FastAPI example, as its clients use it."""

import anyio
import pytest

pytest.importorskip("fastapi")

from examples.fastapi import app as example
from shoal.testing.asgi import Call, ask, calling

ANN = [("authorization", "Bearer token-of-ann")]


def classifying(text):
    return Call(example.api, "/classify", item={"text": text}, headers=ANN)


@pytest.fixture(autouse=True)
async def opened():
    async with example.lifespan(example.api):
        yield


async def test_requests_share_batches():
    texts = ["a free price", *(f"price {number}" for number in range(63))]
    calls = [classifying(text) for text in texts]
    async with calling(*calls):
        for call in calls:
            await call.returned.wait()
    labels = [call.answer.json()["label"] for call in calls]
    assert labels == ["spam", *["other"] * 63]
    batches = example.classify.batcher.statistics().batches
    # The token is checked in threads, so how many share one depends on their pace.
    assert sum(batches.values()) < 64
    assert example.USES["ann"] >= 64


async def test_a_request_without_a_token_makes_no_call():
    answer = await ask(example.api, "/classify", {"text": "a"})
    assert answer.status == 401
    pages = (await ask(example.api, "/-/readyz", method="GET")).json()
    assert "classify" not in pages["batchers"]


async def test_a_failed_batch_is_a_problem():
    call = classifying("\0")
    await call.run()
    assert call.status == 500
    assert call.answer.json()["type"] == "urn:shoal:problem:internal"


async def test_a_text_is_spelled_and_a_client_may_leave():
    headers = [*ANN, ("accept", "application/x-ndjson")]
    answer = await ask(example.api, "/spell?text=eel", method="GET", headers=headers)
    letters = b'{"item":"e"}\n{"item":"e"}\n{"item":"l"}\n{"end":true}\n'
    assert answer.body == letters
    call = Call(example.api, "/spell?text=" + "a" * 1000, method="GET", headers=headers)
    began_at = anyio.current_time()
    async with calling(call):
        await call.until_sent(b"a")
        call.leave()
        await call.returned.wait()
    assert anyio.current_time() - began_at < 1
