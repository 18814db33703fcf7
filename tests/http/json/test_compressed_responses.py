"""Responses that Starlette's middleware compresses, as clients of a server read them."""

import inspect
import zlib

import anyio
import httpx
import pytest
from live_server import live
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

import shoal

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

TEXT = "herring " * 1000


class Held:
    """A stream whose later items come when a test says so."""

    def __init__(self):
        self.go = anyio.Event()

    async def __call__(self, items: list[str]):
        yield items
        await self.go.wait()
        yield items


def compressing(**options):
    app = shoal.App(
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, **options)], heartbeat_s=0.05
    )
    app.held = Held()
    app.endpoint("/held")(app.held)

    @app.endpoint("/same")
    async def same(items: list[str]) -> list[str]:
        return items

    return app


@pytest.mark.parametrize("workers", [None, 1])
async def test_a_whole_response_is_compressed(workers):
    async with live(compressing(), workers) as server, asking(server) as client:
        answer = await client.post("/same", json=TEXT)
        assert (answer.headers["content-encoding"], answer.json()) == ("gzip", TEXT)
        assert int(answer.headers["content-length"]) < 1000
        assert "accept-encoding" in answer.headers["vary"].lower()
        answer = await client.post("/same", json="short")
        assert "content-encoding" not in answer.headers
        answer = await client.post("/same", json=TEXT, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in answer.headers


def asking(server):
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False)


CAN_EXCLUDE = "exclude_content_types" in inspect.signature(GZipMiddleware).parameters


# Heartbeats come while the stream is held, and must be compressed as the items are.
@pytest.mark.skipif(not CAN_EXCLUDE, reason="this Starlette holds pieces back")
@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize(
    ("accept", "excluded", "coding"),
    [
        ("text/event-stream", (), None),
        ("application/x-ndjson", (), "gzip"),
        ("application/x-ndjson", ("application/x-ndjson",), None),
        ("application/json", (), "gzip"),
    ],
)
async def test_items_of_a_stream_are_not_held_back(workers, accept, excluded, coding):
    app = compressing(exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, *excluded))
    headers = {"accept": accept, "accept-encoding": "gzip"}
    async with live(app, workers) as server, asking(server) as client:
        async with client.stream("POST", "/held", json="cod", headers=headers) as answer:
            assert answer.headers.get("content-encoding") == coding
            inflate = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress if coding else bytes
            raw = answer.aiter_raw()
            body = b""
            while body.count(b"cod") < 1 or body.count(b"\n") < 4:  # an item, and heartbeats
                body += inflate(await anext(raw))
            app.held.go.set()
            async for piece in raw:
                body += inflate(piece)
        assert body.count(b"cod") == 2
        whole = await client.post("/held", json="cod", headers=headers)
        assert whole.text.count("cod") == 2
