"""Code that takes one request at a time: `App.get`, `App.post`, and `endpoint(batch=False)`."""

import gc
import threading
from functools import partial

import anyio
import pytest
from echo_app import EchoApp
from live_server import live, read_until, request, until_quiet, upgrade

import shoal
from shoal.server.http1.connection import Http1Connection
from shoal.server.streams.http1_websocket import WebSocketConnection
from shoal.server.streams.http2 import Http2Connection, Http2Stream
from shoal.server.streams.http2_stream import Http2Call
from shoal.server.streams.websocket import WebSocketCall
from shoal.server.transport import Transport
from shoal.testing.asgi import ask
from time_limits import HANG_S

pytestmark = pytest.mark.real_time  # code runs in threads


async def test_a_list_is_one_item_of_it(app):
    @app.post("/join")
    async def join(words: list[str], between: str = "-") -> str:
        return between.join(words)

    @app.endpoint("/size", batch=False)
    def size(numbers: list[int]) -> int:
        return len(numbers)

    async with app.lifespan():
        assert (await ask(app, "/join", {"words": ["a", "b"]})).json() == "a-b"
        assert (await ask(app, "/size", [1, 2, 3])).json() == 3
        assert (await ask(app, "/size", ["x"])).status == 422


async def test_each_method_has_its_own_function(app):
    @app.get("/fish", name="get")
    async def show(number: int) -> int:
        return number

    @app.post("/fish", name="post")
    async def add(number: int) -> int:
        return -number

    async with app.lifespan():
        assert (await ask(app, "/fish?number=2", method="GET")).json() == 2
        assert (await ask(app, "/fish", 2)).json() == -2
        assert (await ask(app, "/fish", 2, method="PUT")).status == 405


async def test_async_code_answers_many_requests_at_once():
    app, running, all_run = shoal.App(), 0, anyio.Event()

    @app.post("/meet")
    async def meet(number: int) -> int:
        nonlocal running
        running += 1
        if running == 100:
            all_run.set()
        await all_run.wait()
        return number

    async with app.lifespan(), anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(partial(ask, app, "/meet", number))
    assert running == 100


async def test_other_code_answers_many_requests_at_once_in_threads():
    app, meeting = shoal.App(), threading.Barrier(40, timeout=HANG_S)

    @app.post("/meet")
    def meet(number: int) -> int:
        meeting.wait()
        return number

    async with app.lifespan(), anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(partial(ask, app, "/meet", number))
    assert not meeting.broken


async def test_how_many_run_at_once_may_be_said(app):
    @app.post("/one", max_ongoing_requests=1)
    async def one(number: int) -> int:
        return number

    async with app.lifespan():
        assert app.controller.backends["one"].config.max_ongoing_requests == 1


async def test_a_class_takes_one_request_at_a_time(app):
    @app.post("/count")
    class Count:
        def __init__(self) -> None:
            self.calls = 0

        async def __call__(self, names: list[str]) -> int:
            self.calls += 1
            return self.calls * len(names)

    async with app.lifespan():
        assert (await ask(app, "/count", ["a", "b"])).json() == 2
        assert (await ask(app, "/count", ["a"])).json() == 2


async def test_steps_of_one_request_are_a_stream(app):
    @app.post("/steps")
    async def steps(numbers: list[int]):
        for number in numbers:
            yield number

    async with app.lifespan():
        assert b"data: 1\n\ndata: 2\n\nevent: end" in (await ask(app, "/steps", [1, 2])).body


def test_what_takes_batches_is_refused():
    @shoal.batch
    async def batched(items: list[int]) -> list[int]:
        return items

    with pytest.raises(TypeError, match=r"takes batches, so declare it by @app\.endpoint"):
        shoal.App().post("/x")(batched)

    async def continuous(batch: shoal.OpenBatch[int, int]) -> None:
        pass

    with pytest.raises(TypeError, match="takes batches"):
        shoal.App().post("/x", fill="open")(continuous)
    with pytest.raises(ValueError, match="max_batch_size=4 is for code that takes lists"):
        shoal.App().post("/x", max_batch_size=4)(lambda item: item)
    with pytest.raises(TypeError, match="max_batch_sise"):
        shoal.App().post("/x", max_batch_sise=4)(lambda item: item)


# What a connection leaves in memory once it has ended: nothing, without the garbage collector


EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
# GET http://localhost/, by HPACK's static table.
FIELDS = b"\x82\x86\x84\x41\x09localhost"
HEADERS = len(FIELDS).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x01" + FIELDS
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS
INVALID_FRAME = b"\xff\xff\xff\xff"

# What the client says, and what it waits for before it leaves.
CLIENTS = {
    "a request": (request("/"), b"\r\n\r\n"),
    "an unfinished head": (request("/")[:-2], b""),
    "a bad request": (b"\x00\r\n\r\n", b"400"),
    "the preface of HTTP/2": (HTTP2, b"\x04"),
    "a request of HTTP/2": (HTTP2 + HEADERS, b"\x04"),
    "an invalid frame of HTTP/2": (HTTP2 + INVALID_FRAME * 4, b"\x04"),
    "a WebSocket": (upgrade(), b"101"),
    "a WebSocket that does not wait": (upgrade() + INVALID_FRAME * 4, b"\r\n\r\n"),
}
OF_CONNECTIONS = (
    *(Transport, Http1Connection, WebSocketConnection, Http2Connection, Http2Stream),
    *(Http2Call, WebSocketCall),
)


@pytest.mark.parametrize("said", CLIENTS)
async def test_a_connection_leaves_nothing_to_the_garbage_collector(said):
    data, awaited = CLIENTS[said]

    async def once():
        async with await server.connect() as client:
            await client.send_all(data)
            await read_until(client, awaited)
        await until_quiet()

    async with live(EchoApp()) as server:
        await once()
        gc.collect()
        before = kept()
        gc.disable()
        try:
            for _ in range(3):
                await once()
            assert kept() == before
        finally:
            gc.enable()


def kept():
    return [type(each).__qualname__ for each in gc.get_objects() if type(each) in OF_CONNECTIONS]
