"""Each protocol over each carrier: HTTP/1.1 and HTTP/2, over TCP, TLS and a UNIX socket.

A server on each event loop runs in a thread for the whole file, and clients that no one here wrote
ask it. Where such a client does not speak HTTP/2 itself, httpx carries what it writes and reads.
"""

import gzip
import io
import itertools
import json
import os
import ssl
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from threading import Event
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from httpx_sse import connect_sse
from numpy.typing import NDArray  # read at run time
from openai_app import embed, upper, words
from websockets.asyncio.client import connect, unix_connect

import shoal.http_client
from shoal.asgi.http_options import HttpOptions
from shoal.server.listeners import AppAddress, Tcp, Unix
from shoal.server.server import serve
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

LOOPS = ["trio", "asyncio"]
NUMBERS = itertools.count()
# By which path, with TLS or without, and whether in HTTP/2.
CARRIERS = {
    "http1-tls": ("tls", False),
    "http1-unix": ("unix", False),
    "http2-prior-knowledge": ("tcp", True),
    "http2-alpn": ("tls", True),
    "http2-unix": ("unix", True),
}


class Held:
    """Streams its item, and then waits until it is cancelled.

    Attributes:
        left: Set when the request with that item has ended; for any thread.
    """

    def __init__(self) -> None:
        self.left = defaultdict[int, Event](Event)

    async def __call__(self, items: list[int]):
        try:
            yield items
            await anyio.sleep_forever()
        finally:
            self.left[items[0]].set()


def carried_app() -> shoal.App:
    app = shoal.App(protocols=["oip", "openai"], title="Carried")
    for handler in (words, upper, embed):
        app.endpoint(f"/{handler.__name__}", name=handler.__name__)(handler)
    app.held = Held()
    app.endpoint("/held", name="held", max_batch_size=1)(app.held)
    app.runs = []

    @app.endpoint("/count", name="count")
    async def count(number: list[int]):
        app.runs.append(number)
        for step in range(max(number)):
            yield [step if step < one else shoal.END for one in number]

    @app.endpoint("/double", name="double")
    def double(x: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        return [2 * one for one in x]

    @app.endpoint("/any", name="any")
    async def anything(items: list[Any]) -> list[Any]:
        return items

    @app.endpoint("/raw", name="raw")
    async def raw(items: list[bytes]) -> list[bytes]:
        return [item[::-1] for item in items]

    return app


@dataclass
class Served:
    """A server in a thread; its addresses by `tls`, `tcp` and `unix`."""

    app: Any
    loop: str
    urls: dict[str, str]
    certfile: str

    def trusting(self):
        return ssl.create_default_context(cafile=self.certfile)


@pytest.fixture(scope="module", params=LOOPS)
def served(request, certificate, tmp_path_factory):
    app = carried_app()
    path = str(tmp_path_factory.mktemp("carried") / "s")
    assert len(os.fsencode(path)) < 100, "the path of a UNIX socket is too long"
    urls: dict[str, str] = {}

    async def run(*, task_status):
        def started(name, url):
            urls[name] = url
            if len(urls) == 3:
                task_status.started(stop)

        stop = anyio.Event()
        extra = [  # as of the operator: without TLS
            AppAddress(
                address=Tcp("127.0.0.1", 0),
                app=app,
                on_listening=partial(started, "tcp"),
                is_admin=True,
            ),
            AppAddress(
                address=Unix(path), app=app, on_listening=partial(started, "unix"), is_admin=True
            ),
        ]
        options = HttpOptions(port=0, graceful_timeout_s=1, keep_alive_timeout_s=60, **certificate)
        await serve(
            app,
            options,
            shutdown=stop.wait,
            on_listening=partial(started, "tls"),
            extra_addresses=extra,
        )

    with anyio.from_thread.start_blocking_portal(request.param) as portal:
        ended, stop = portal.start_task(run)
        yield Served(app, request.param, urls, certificate["certfile"])
        portal.call(stop.set)
        ended.result(HANG_S)


@dataclass
class Carrier:
    """A way to the server."""

    served: Served
    name: str

    @property
    def path(self):
        return CARRIERS[self.name][0]

    @property
    def is_http2(self):
        return CARRIERS[self.name][1]

    @property
    def url(self):
        given = self.served.urls[self.path]
        return "http://localhost" if self.path == "unix" else given

    def transport(self, kind=httpx.HTTPTransport):
        # Without TLS, and with HTTP/2 alone, httpx knows that the server speaks it.
        protocols = {"http1": not self.is_http2 or self.path == "tls", "http2": self.is_http2}
        uds = self.served.urls["unix"].removeprefix("unix:") if self.path == "unix" else None
        return kind(verify=self.served.trusting(), uds=uds, **protocols)

    @contextmanager
    def client(self):
        """A client of httpx, each answer of which must come by this carrier."""

        def check(answer):
            assert answer.http_version == ("HTTP/2" if self.is_http2 else "HTTP/1.1")

        with httpx.Client(
            base_url=self.url,
            transport=self.transport(),
            headers={"accept-encoding": "identity"},
            timeout=HANG_S,
            event_hooks={"response": [check]},
        ) as client:
            yield client


@pytest.fixture(params=CARRIERS)
def carrier(served, request):
    return Carrier(served, request.param)


def use_json(carrier):
    with carrier.client() as client:
        assert "Carried" in client.get("/", headers={"accept": "text/html"}).text
        assert client.post("/any", json={"a": [1, None]}).json() == {"a": [1, None]}
        assert client.get("/any?x=1").json() == {"x": "1"}
        problem = client.post("/count", json="no")
        assert problem.status_code == 422
        assert problem.headers["content-type"] == "application/problem+json"
        late = client.post("/held", json=next(NUMBERS), headers={"x-request-timeout": "0.05"})
        assert late.text.count("deadline-exceeded") == 1  # in the stream, which has begun


def use_open_inference_binary(carrier):
    triton = pytest.importorskip("tritonclient.http")
    array = np.arange(6.0).reshape(2, 3)
    given = triton.InferInput("x", array.shape, "FP64")
    given.set_data_from_numpy(array, binary_data=True)
    of = triton.InferenceServerClient
    body, length = of.generate_request_body([given], request_id="8")
    with carrier.client() as client:
        answer = client.post(
            "/v2/models/double/infer",
            content=body,
            headers={
                "content-type": "application/octet-stream",
                "inference-header-content-length": str(length),
            },
        )
    found = of.parse_response_body(
        answer.content, header_length=int(answer.headers["inference-header-content-length"])
    )
    assert found.get_response()["id"] == "8"
    assert (found.as_numpy("output") == 2 * array).all()


def use_openai(carrier):
    openai = pytest.importorskip("openai")
    with (
        carrier.client() as of_http,
        openai.OpenAI(
            base_url=f"{carrier.url}/v1", api_key="none", max_retries=0, http_client=of_http
        ) as client,
    ):
        assert "upper" in [model.id for model in client.models.list()]
        messages: Any = [{"role": "user", "content": "hi you"}]
        with client.chat.completions.create(
            model="words", messages=messages, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == "user: hi you\nassistant: "
        assert chunks[-1].usage.completion_tokens == 3
        vectors = client.embeddings.create(model="embed", input=["a", "bc"])
        assert [one.embedding for one in vectors.data] == [[1.0, 0.5], [2.0, 0.5]]
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="gpt", prompt="a")
        assert missing.value.code == "model_not_found"


def use_events(carrier):
    headers = {"accept": "text/event-stream"}
    with carrier.client() as client:
        with connect_sse(client, "GET", "/count?number=3") as source:
            events = list(source.iter_sse())
        assert [(e.id, e.event, e.data) for e in events] == [
            *((str(n + 1), "message", str(n)) for n in range(3)),
            ("4", "end", "{}"),
        ]
        carrier.served.app.runs.clear()
        again = client.get("/count?number=3", headers={**headers, "last-event-id": "4"})
        assert (again.status_code, carrier.served.app.runs) == (204, [])
        lines = client.post("/count", json=2, headers={"accept": "application/x-ndjson"})
        assert lines.text.split() == ['{"item":0}', '{"item":1}', '{"end":true}']
        assert client.post("/count", json=2, headers={"accept": "application/json"}).json() == [
            0,
            1,
        ]


@cache
def bomb():
    return gzip.compress(bytes(32 * 2**20))


def use_bodies(carrier):
    coded = {"content-type": "application/json", "content-encoding": "gzip"}
    with carrier.client() as client:
        raw = bytes(range(256)) * 1000
        of_bytes = {"content-type": "application/octet-stream"}
        assert client.post("/raw", content=raw, headers=of_bytes).content == raw[::-1]
        body = json.dumps("é" * 5000).encode()
        assert client.post("/any", content=gzip.compress(body), headers=coded).json() == "é" * 5000
        refused = client.post("/any", content=bomb(), headers=coded)
        assert refused.status_code == 413


def use_client(carrier):
    async def main():
        over = httpx.AsyncClient(transport=carrier.transport(httpx.AsyncHTTPTransport))
        async with shoal.http_client.HttpClient(carrier.url, client=over) as client:
            assert await client.call("/any", {"a": 1}) == {"a": 1}
            assert (await client.call("/double", np.ones(3), result="npy") == 2).all()
            assert await client.call("/raw", b"ab", result="bytes") == b"ba"
            async with client.stream("/count", 3) as stream:
                assert [step async for step in stream] == [0, 1, 2]
            with pytest.raises(shoal.errors.HttpProblem, match="fit"):
                await client.call("/double", "x")

    anyio.run(main, backend=carrier.served.loop)


PROTOCOLS = [use_json, use_open_inference_binary, use_openai, use_events, use_bodies, use_client]


@pytest.mark.parametrize("use", PROTOCOLS, ids=lambda use: use.__name__.removeprefix("use_"))
def test_a_protocol_is_carried(carrier, use):
    use(carrier)


def test_a_client_that_leaves_frees_its_place(carrier):
    item = next(NUMBERS)
    left = carrier.served.app.held.left[item]
    with carrier.client() as client, client.stream("POST", "/held", json=item) as answer:
        lines = answer.iter_lines()  # the connection is closed with it
        assert next(lines) == f"data: {item}"
        assert not left.is_set()
    assert left.wait(HANG_S)


# What has no HTTP/2, or ways of its own.


def test_the_client_of_triton_speaks_tls(served):
    triton = pytest.importorskip("tritonclient.http")
    with triton.InferenceServerClient(
        served.urls["tls"].removeprefix("https://"), ssl=True, ssl_context_factory=served.trusting
    ) as client:
        assert client.is_server_ready()
        for binary in (True, False):
            given = triton.InferInput("x", [2, 1], "FP64")
            given.set_data_from_numpy(np.ones((2, 1)), binary_data=binary)
            found = client.infer("double", [given])
            assert (found.as_numpy("output") == 2).all()


class BlockingWebSocket:
    """Sends and receives in the event loop that a WebSocket belongs to."""

    def __init__(self, portal, websocket):
        self.subprotocol = websocket.subprotocol
        self._portal = portal
        self._websocket = websocket

    def send(self, message):
        self._portal.call(self._websocket.send, message)

    def recv(self):
        return self._portal.call(self._recv)

    async def _recv(self):
        with anyio.fail_after(HANG_S):
            return await self._websocket.recv()


@contextmanager
def open_websocket(carrier, path):
    """A WebSocket of the client `websockets`, which speaks HTTP/1.1.

    Not of `websockets.sync`: it reads in one thread and writes in another, and an SSL socket of
    CPython loses handshakes then (python/cpython#151508).
    """
    options = {"subprotocols": ["shoal.v1"], "compression": None, "proxy": None}
    if carrier.path == "unix":
        opening = unix_connect(
            carrier.served.urls["unix"].removeprefix("unix:"), f"ws://localhost{path}", **options
        )
    else:
        url = carrier.url.replace("http", "ws", 1)
        opening = connect(f"{url}{path}", ssl=carrier.served.trusting(), **options)
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(opening) as websocket,
    ):
        yield BlockingWebSocket(portal, websocket)


@pytest.mark.parametrize("carrier", ["http1-tls", "http1-unix"], indirect=True)
def test_a_websocket_is_carried(carrier):
    with open_websocket(carrier, "/count") as socket:
        assert socket.subprotocol == "shoal.v1"
        socket.send('{"id": 1, "item": 100}')
        socket.send('{"id": 2, "item": 2}')
        found, ended = {1: [], 2: []}, set()
        while len(ended) < 2:
            message = json.loads(socket.recv())
            if "next" in message:
                found[message["id"]].append(message["next"])
            else:
                assert message["end"] is True
                ended.add(message["id"])
        assert found == {1: list(range(100)), 2: [0, 1]}
    file = io.BytesIO()
    np.save(file, np.array([1.5]))
    with open_websocket(carrier, "/double") as socket:
        socket.send(b'{"id": 1}\n' + file.getvalue())
        assert json.loads(socket.recv()) == {"id": 1, "result": [3.0]}
    item = next(NUMBERS)
    left = carrier.served.app.held.left[item]
    with open_websocket(carrier, "/held") as socket:
        socket.send(json.dumps({"id": 1, "item": item}))
        assert json.loads(socket.recv()) == {"id": 1, "next": item}
        assert not left.is_set()
    assert left.wait(HANG_S)
