"""Endpoints whose batches take requests while their handler runs."""

import json

import anyio
import pytest

import shoal
from handlers import app_of
from shoal.asgi.http_options import HttpOptions
from shoal.http.json.stream_forms import JSON_LINES
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.shared_parts import SharedParts
from shoal.http.requests.streaming import _Relay
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

LINES = ("accept", "application/x-ndjson")
END = b"event: end\ndata: {}\n\n"


class Words:
    """A continuous handler of streams: it sends three words, one for each that is let go."""

    def __init__(self):
        self.gate = anyio.Semaphore(0)

    async def __call__(self, batch: shoal.OpenBatch[str, str]) -> None:
        async for request in batch:
            for word in range(3):
                await self.gate.acquire()
                await request.send(f"{request.item}{word}")
            request.finish()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([], b'data: "a0"\n\ndata: "a1"\n\ndata: "a2"\n\n' + END),
        ([LINES], b'{"item":"a0"}\n{"item":"a1"}\n{"item":"a2"}\n{"end":true}\n'),
    ],
)
async def test_a_stream_of_a_continuous_batch_is_sent_as_it_is_produced(headers, body):
    words = Words()
    app = app_of(words, "/it", name="it", fill="continuous", streams=True, max_batch_size=2)
    call = Call(app, "/it", item="a", headers=headers)
    async with app.lifespan(), calling(call):
        await settle()
        assert call.sent == []
        words.gate.release()
        await settle()
        assert b"a0" in call.body
        assert b"a1" not in call.body
        words.gate.release()
        words.gate.release()
        await call.returned.wait()
    assert (call.status, call.body) == (200, body)


async def test_calls_of_an_open_batch_get_their_results():
    sizes = []

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        requests = [request async for request in batch]
        sizes.append(len(requests))
        for request in requests:
            request.finish(2 * request.item)

    app = app_of(handler, "/it", name="it", fill="open", max_batch_size=3, batch_wait_timeout_s=5)
    calls = [Call(app, "/it", item=item) for item in range(4)]
    async with app.lifespan(), calling(*calls):
        for call in calls:
            await call.returned.wait()
    assert sizes == [3, 1]
    assert [call.answer.json() for call in calls] == [0, 2, 4, 6]


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_items_are_checked_against_the_annotation_of_the_batch(fill):
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            request.finish(request.item)

    app = app_of(handler, "/it", name="it", fill=fill)
    async with app.lifespan():
        assert (await ask(app, "/it", "text")).status == 422
        assert (await ask(app, "/it", 3)).json() == 3


@pytest.mark.real_time
@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_a_class_is_made_once_and_its_call_is_the_handler(fill, app):
    made = []

    @app.endpoint("/it", name="it", fill=fill, streams=True)
    class Model:
        def __init__(self):
            made.append(self)

        async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:
            async for request in batch:
                for number in range(request.item):
                    await request.send(number)
                request.finish()

    async with app.lifespan():
        for item in (2, 3):
            answer = await ask(app, "/it", item, headers=[LINES])
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert lines == [*({"item": number} for number in range(item)), {"end": True}]
        assert (await ask(app, "/it", "text")).status == 422
    assert len(made) == 1


async def test_a_decorated_function_keeps_its_way_of_filling(app):
    @shoal.batch(fill="continuous", streams=True)
    async def counts(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await request.send(request.item)
            request.finish()

    with pytest.raises(TypeError, match="decorated"):
        app.endpoint("/other", fill="open")(counts)
    app.endpoint("/it", name="it")(counts)
    async with app.lifespan():
        answer = await ask(app, "/it", 7)
    assert answer.body == b"data: 7\n\n" + END


def test_streams_are_for_batches_that_are_open(app):
    async def handler(items: list[int]) -> list[int]:
        return items

    with pytest.raises(TypeError, match="streams"):
        app.endpoint("/it", streams=True)(handler)


async def test_a_last_item_that_comes_with_the_end_is_sent_with_it():
    async def handler(batch: shoal.OpenBatch[str, str]) -> None:
        async for request in batch:
            await request.send("first")
            await settle()
            await request.send("last")
            request.finish()

    call = Call(None, "/it")
    exchange = Exchange(SharedParts(HttpOptions()), call.scope, call._receive, call._send)
    batcher = shoal.Batcher(handler, fill="continuous", streams=True)
    async with batcher as model, model("a") as stream:
        await exchange.begin(200, [])
        relay = _Relay(exchange, stream, JSON_LINES, lambda: None, None)
        assert await relay._send_rest() == b'{"item":"last"}\n'
    assert call.body == b'{"item":"first"}\n'
