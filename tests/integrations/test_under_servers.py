"""The integration under each ASGI server, with clients that leave by closing their socket."""

import json
import socket
from contextlib import asynccontextmanager
from functools import partial

import anyio
import hypercorn.asyncio
import hypercorn.trio
import pytest
import sniffio
import uvicorn
from fastapi import FastAPI
from hypercorn.config import Config
from live_server import Client, live, read_all, read_until, request

import shoal
from shoal.integrations.starlette import (
    ResultStreamResponse,
    cancel_on_disconnect,
    exception_handlers,
    lifespan,
    operator_pages,
)
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def on_uvicorn(app):
    if sniffio.current_async_library() == "trio":
        pytest.skip("uvicorn runs on asyncio")
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        yield listener.getsockname()[1]
        server.should_exit = True
    listener.close()


@asynccontextmanager
async def on_hypercorn(app):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    library = sniffio.current_async_library()
    serve = hypercorn.trio.serve if library == "trio" else hypercorn.asyncio.serve
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(serve, app, config, shutdown_trigger=stop.wait))
        yield port
        stop.set()


@asynccontextmanager
async def on_shoal(app):
    async with live(app) as server:
        yield server.port


@pytest.fixture(params=[on_uvicorn, on_hypercorn, on_shoal], ids=lambda one: one.__name__[3:])
def serve(request):
    return request.param


class Site:
    """An API whose handlers wait for the test."""

    def __init__(self):
        self.batches = []
        self.began, self.go, self.closed = anyio.Event(), anyio.Event(), anyio.Event()
        self.api = FastAPI(lifespan=lifespan, exception_handlers=exception_handlers())
        self.api.mount("/-", operator_pages())
        hold = shoal.batch(self.hold, max_batch_size=8, max_queued_requests=8)
        tokens = shoal.batch(self.tokens)

        @self.api.get("/hold/{name}")
        @cancel_on_disconnect
        async def of_name(name: str) -> str:
            return await hold(name)

        @self.api.get("/tokens")
        async def stream() -> ResultStreamResponse:
            return ResultStreamResponse(tokens(""))

    async def hold(self, names: list[str]) -> list[str]:
        self.batches.append(names)
        self.began.set()
        await self.go.wait()
        return names

    async def tokens(self, names: list[str]):
        try:
            yield names
            self.began.set()
            await anyio.sleep_forever()
        finally:
            self.closed.set()


async def connected(port, path):
    client = Client(await anyio.connect_tcp("127.0.0.1", port))
    await client.send_all(request(path, close=True))
    return client


async def answer_of(client):
    head, _, body = (await read_all(client)).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), body


async def ask(port, path):
    async with await connected(port, path) as client:
        return await answer_of(client)


async def until_queued(port, number):
    """Asks the server until this many requests are queued."""
    while True:
        _, _, body = await ask(port, "/-/readyz")
        if json.loads(body)["batchers"]["Site.hold"]["queued"] == number:
            return


async def test_clients_that_leave_do_not_reach_the_handler(serve):
    site = Site()
    with anyio.fail_after(HANG_S):
        async with serve(site.api) as port, await connected(port, "/hold/first") as first:
            await site.began.wait()
            left = [await connected(port, f"/hold/{number}") for number in range(5)]
            await until_queued(port, 5)
            for client in left:
                await client.aclose()
            await until_queued(port, 0)
            site.go.set()
            status, _, body = await answer_of(first)
    assert (status, json.loads(body)) == (200, "first")
    assert site.batches == [["first"]]


async def test_a_stream_ends_when_its_client_leaves(serve):
    site = Site()
    with anyio.fail_after(HANG_S):
        async with serve(site.api) as port:
            async with await connected(port, "/tokens") as client:
                await read_until(client, b"data")
                await site.began.wait()
            await site.closed.wait()


async def test_a_full_queue_is_refused_with_a_problem(serve):
    site = Site()
    with anyio.fail_after(HANG_S):
        async with serve(site.api) as port:
            clients = [await connected(port, "/hold/first")]
            await site.began.wait()
            clients += [await connected(port, f"/hold/{number}") for number in range(8)]
            await until_queued(port, 8)
            status, head, body = await ask(port, "/hold/one-more")
            assert (status, json.loads(body)["type"]) == (503, "urn:shoal:problem:overloaded")
            assert b"retry-after: 1" in head
            site.go.set()
            statuses = []
            for client in clients:
                async with client:
                    statuses.append((await answer_of(client))[0])
    assert statuses == [200] * 9
