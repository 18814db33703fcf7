"""Responses that Starlette's middleware compresses, as clients of a server read them."""

import inspect
import zlib
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from live_server import live
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401

pytestmark = pytest.mark.real_time

TEXT = "herring " * 1000


class Held:
    """A stream whose later items come when a test says so."""

    def __init__(self):
        self.go = anyio.Event()

    async def __call__(self, items: list[str]):
        yield items
        await self.go.wait()
        yield items


# Before Starlette could leave types of content out, it held pieces back.
CAN_EXCLUDE = "exclude_content_types" in inspect.signature(GZipMiddleware).parameters
NEEDS_EXCLUSION = pytest.mark.skipif(not CAN_EXCLUDE, reason="this Starlette holds pieces back")


@asynccontextmanager
async def compressing(workers, **options):
    """A client of a server with the middleware; its `held` is the handler of a stream."""
    app = shoal.App(
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, **options)], heartbeat_s=0.05
    )
    held = Held()
    app.endpoint("/held")(held)

    @app.endpoint("/same")
    async def same(items: list[str]) -> list[str]:
        return items

    async with (
        live(app, workers, hang_s=120) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        client.held = held
        yield client


@pytest.fixture(scope="module", params=[None, 1], ids=["no worker", "a worker"])
async def client(anyio_backend, request):
    async with compressing(request.param) as client:
        yield client


async def test_a_whole_response_is_compressed(client):
    answer = await client.post("/same", json=TEXT)
    assert (answer.headers["content-encoding"], answer.json()) == ("gzip", TEXT)
    assert int(answer.headers["content-length"]) < 1000
    assert "accept-encoding" in answer.headers["vary"].lower()
    answer = await client.post("/same", json="short")
    assert "content-encoding" not in answer.headers
    answer = await client.post("/same", json=TEXT, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers


async def assert_not_held_back(client, accept, coding):
    """Heartbeats come while the stream is held, and must be compressed as the items are."""
    client.held.go = anyio.Event()
    headers = {"accept": accept, "accept-encoding": "gzip"}
    async with client.stream("POST", "/held", json="cod", headers=headers) as answer:
        assert answer.headers.get("content-encoding") == coding
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress if coding else bytes
        raw = answer.aiter_raw()
        body = b""
        while body.count(b"cod") < 1 or body.count(b"\n") < 4:  # an item, and heartbeats
            body += inflate(await anext(raw))
        client.held.go.set()
        async for piece in raw:
            body += inflate(piece)
    assert body.count(b"cod") == 2
    whole = await client.post("/held", json="cod", headers=headers)
    assert whole.text.count("cod") == 2


@NEEDS_EXCLUSION
@pytest.mark.parametrize(
    ("accept", "coding"),
    [("text/event-stream", None), ("application/x-ndjson", "gzip"), ("application/json", "gzip")],
)
async def test_items_of_a_stream_are_not_held_back(client, accept, coding):
    await assert_not_held_back(client, accept, coding)


@NEEDS_EXCLUSION
@pytest.mark.one_loop
async def test_a_type_of_stream_may_be_left_out():
    excluded = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/x-ndjson")
    async with compressing(1, exclude_content_types=excluded) as client:
        await assert_not_held_back(client, "application/x-ndjson", None)
