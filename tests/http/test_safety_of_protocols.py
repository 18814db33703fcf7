"""The rules of safety, in each protocol in which an endpoint is called."""

import gzip
import io
import json
import logging
import pickle
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import h2.events
import httpx
import numpy as np
import ormsgpack
import pytest
from live_server import Http2Client, live, read_all, read_until
from starlette.exceptions import HTTPException
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage, Message, TextMessage

import shoal
from handlers import ask_once
from shoal.server.server import load_stream_protocols
from shoal.testing.asgi import Call, ask, calling
from socket_in_memory import opened

MIB = 2**20
JSON = ("content-type", "application/json")


async def photo_of(request):
    """The item of a request with a form; its part `about` is JSON."""
    form = await request.form()
    if "image" not in form:
        raise HTTPException(415, "Send a form with an image")
    return await form["image"].read(), json.loads(form["about"])


class Seen:
    """The items that handlers were given, and what holds them."""

    def __init__(self):
        self.items: list[Any] = []
        self.go = anyio.Event()
        self.go.set()

    async def take(self, items):
        await self.go.wait()
        self.items += items
        return items


def safe_app(**settings):
    """An application with an endpoint for each way to send an item; `seen` is what came."""
    app = shoal.App(protocols=["oip", "openai"], **settings)
    app.seen = seen = Seen()
    options: Any = {"max_queued_requests": 2, "max_batch_size": 4}

    @app.endpoint("/any", name="any", **options)
    async def anything(items: list[Any]) -> list[Any]:
        return await seen.take(items)

    @app.endpoint("/text", name="text", **options)
    async def text(prompts: list[str]) -> list[str]:
        return await seen.take(prompts)

    @app.endpoint("/vector", name="vector", **options)
    async def vector(inputs: list[str]) -> list[list[float]]:
        await seen.take(inputs)
        return [[1.0] for _ in inputs]

    @app.endpoint("/stream", name="stream", **options)
    async def stream(items: list[Any]):
        yield await seen.take(items)

    @app.endpoint("/photo", name="photo", decode=photo_of, **options)
    async def photo(images: list[bytes], about: list[Any]) -> list[int]:
        await seen.take(about)
        return [len(image) for image in images]

    @app.endpoint("/array", name="array", **options)
    async def array(items: list[np.ndarray]) -> list[Any]:
        return await seen.take(items)

    return app


@pytest.fixture
def safe() -> Any:
    return safe_app()


def form(about: bytes, image: bytes = b"1") -> bytes:
    part = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n'
    return b"".join(
        [
            part % (b"image", b'; filename="a"', b"Content-Type: image/png\r\n", image),
            part % (b"about", b"", b"Content-Type: application/json\r\n", about),
            b"--b--\r\n",
        ]
    )


@dataclass(frozen=True)
class Way:
    """A way to send a text of JSON, in a protocol."""

    path: str
    template: bytes
    headers: tuple[tuple[str, str], ...] = (JSON,)

    @property
    def error(self) -> str:
        return "error" if self.path.startswith("/v") else "type"

    def body(self, text: bytes) -> bytes:
        return self.template % text


WAYS = {
    "json": Way("/any", b"%b"),
    "events": Way("/stream", b"%b", (JSON, ("accept", "text/event-stream"))),
    "form": Way("/photo", form(b"%b"), (("content-type", "multipart/form-data; boundary=b"),)),
    "oip": Way(
        "/v2/models/any/infer",
        b'{"inputs":[{"name":"items","shape":[1],"datatype":"BYTES","data":[%b]}]}',
    ),
    "oip-parameters": Way("/v2/models/any/infer", b'{"inputs":[],"parameters":{"a":%b}}'),
    "completions": Way("/v1/completions", b'{"model":"text","prompt":%b}'),
    "completions-stream": Way("/v1/completions", b'{"model":"stream","stream":true,"prompt":%b}'),
    "chat": Way(
        "/v1/chat/completions", b'{"model":"text","messages":[{"role":"user","content":%b}]}'
    ),
    "embeddings": Way("/v1/embeddings", b'{"model":"vector","input":%b}'),
}
# Those in which a text is an item that is answered with 200.
TAKE_TEXT = [name for name in WAYS if name != "oip-parameters"]


def send(app, way: Way, text: bytes, *more: tuple[str, str]):
    return ask(app, way.path, body=way.body(text), headers=[*way.headers, *more])


def check_error(way: Way, answer) -> None:
    assert way.error in answer.json()
    kind = "application/problem+json" if way.error == "type" else "application/json"
    assert answer.headers["content-type"] == kind


DEEP = b"[" * 250 + b"]" * 250
MANY = b"[" + b"0," * 2000 + b"0]"
KEYS = b"{" + b",".join(b'"%d":0' % number for number in range(2000)) + b"}"


# Rule 6: limits, checked before memory is taken.


@pytest.mark.parametrize("text", [DEEP, MANY, KEYS], ids=["deep", "many", "keys"])
@pytest.mark.one_loop
async def test_json_is_bounded_in_depth_and_elements(text):
    app = safe_app(max_json_elements=1000)
    async with app.lifespan():
        for name, way in WAYS.items():
            if name == "form":  # its JSON is read by the code
                continue
            answer = await send(app, way, text)
            assert answer.status == (400 if text is DEEP else 413), (name, answer.body)
            check_error(way, answer)
    assert app.seen.items == []


@pytest.mark.one_loop
async def test_a_body_is_bounded_in_bytes():
    app = safe_app(max_body_bytes=1000)
    async with app.lifespan():
        for name, way in WAYS.items():
            answer = await send(app, way, b'"' + b"x" * 1000 + b'"')
            assert answer.status == 413, name
            check_error(way, answer)
            if name in TAKE_TEXT:
                assert (await send(app, way, b'"x"')).status == 200, name


@pytest.mark.parametrize("text", [DEEP, MANY, KEYS], ids=["deep", "many", "keys"])
@pytest.mark.parametrize("quick", [True, False])
async def test_json_of_a_websocket_is_bounded(text, quick):
    app = safe_app(max_json_elements=1000)
    message = b'{"id":1,"item":%b%b}' % (text, b"" if quick else b',"priority":1')
    async with app.lifespan(), opened(app, "/any") as socket:
        socket.say(message.decode())
        first = await socket.message()
        if first["type"] == "websocket.close":
            assert first["code"] in (1007, 1009)
        else:
            assert json.loads(first["text"])["error"]["status"] in (400, 413)
    assert app.seen.items == []


COMPRESS = {"gzip": partial(gzip.compress, mtime=0), "deflate": zlib.compress}


@pytest.mark.parametrize("coding", COMPRESS)
@pytest.mark.one_loop
async def test_an_archive_bomb_is_refused(coding):
    app = safe_app(max_body_bytes=MIB)
    async with app.lifespan():
        for name, way in WAYS.items():
            bomb = COMPRESS[coding](way.body(b'"' + bytes(2 * MIB) + b'"'))
            assert len(bomb) < MIB // 100
            headers = [*way.headers, ("content-encoding", coding)]
            answer = await ask(app, way.path, body=bomb, headers=headers)
            assert answer.status == 413, name
            check_error(way, answer)
    assert app.seen.items == []


@pytest.mark.one_loop
async def test_a_file_in_a_form_is_not_unpacked():
    app = safe_app(max_body_bytes=MIB)
    bomb = gzip.compress(bytes(2 * MIB))
    body = form(b"1", bomb).replace(
        b"Content-Type: image/png", b"Content-Type: image/png\r\nContent-Encoding: gzip"
    )
    answer = await ask_once(app, "/photo", body=body, headers=WAYS["form"].headers)
    assert answer.json() == len(bomb)


# Rules 2 and 3: methods by name, hosts and origins.

READ_ONLY = [
    *("/v1/models", "/v1/models/text", "/v2", "/v2/health/live", "/v2/health/ready"),
    *("/v2/models/any", "/v2/models/any/ready", "/-/openapi.json", "/-/docs"),
]
OF_PROTOCOLS = {
    **{way.path: {"POST", "OPTIONS"} for way in WAYS.values() if way.error == "error"},
    **{path: {"GET", "HEAD", "OPTIONS"} for path in READ_ONLY},
    "/": {"GET", "HEAD"},
}
METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT"]


@pytest.mark.one_loop
async def test_only_named_methods_are_answered(safe):
    async with safe.lifespan():
        for path, allowed in OF_PROTOCOLS.items():
            for method in METHODS:
                body = b"{}" if method == "POST" else None
                headers = [JSON] if body else []
                answer = await ask(safe, path, method=method, body=body, headers=headers)
                refused = answer.status in (404, 405)
                assert refused == (method not in allowed), (path, method, answer)
                if answer.status == 405:
                    assert set(answer.headers["allow"].split(", ")) == allowed


MANAGEMENT = [
    *("repository/index", "repository/models/any/load", "repository/models/any/unload"),
    *("systemsharedmemory/region/a/register", "cudasharedmemory/region/a/register"),
    *("trace/setting", "logging", "models/any/trace/setting"),
]


async def test_nothing_of_a_protocol_changes_the_server(safe):
    """Triton's and OpenAI's servers load models, map memory and keep files for their callers."""
    async with safe.lifespan():
        for path in (*(f"/v2/{name}" for name in MANAGEMENT), "/v1/files", "/v1/models/a"):
            for method in ("POST", "PUT", "DELETE"):
                answer = await ask(safe, path, method=method, body=b"{}", headers=[JSON])
                assert answer.status in (404, 405), path
                assert "error" in answer.json()


@pytest.mark.one_loop
async def test_what_a_page_may_send_unasked_is_refused(safe):
    """A page of another origin can send the types of forms, or none."""
    async with safe.lifespan():
        for name, way in WAYS.items():
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                headers = [("content-type", kind)] if kind else [("origin", "http://evil.test")]
                answer = await ask(safe, way.path, body=way.body(b'"x"'), headers=headers)
                assert answer.status == 415, (name, kind, answer.body)
                check_error(way, answer)
    assert safe.seen.items == []


def head(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("evil.test", None, b"421"),
        ("localhost", "http://evil.test", b"403"),
        ("localhost", "null", b"403"),
        ("localhost", "http://localhost", b"200"),
    ],
)
async def test_other_hosts_and_origins_are_refused(host, origin, status, safe):
    json, item = "Content-Type: application/json", b'"x"'
    of_page = [f"Origin: {origin}"] if origin else []
    asked = head("POST", "/any", f"Host: {host}", json, *of_page, body=item)
    common = [(b":scheme", b"http"), (b":authority", host.encode())]
    common += [(b"origin", origin.encode())] if origin else []
    post = [(b":method", b"POST"), (b":path", b"/any"), *common]
    connect = [
        *((b":method", b"CONNECT"), (b":protocol", b"websocket"), (b":path", b"/any")),
        *common,
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-protocol", b"shoal.v1"),
    ]
    async with live(safe, allowed_hosts=[]) as server:
        answer = await server.talk(asked)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"access-control-" not in answer.lower()
        client = Http2Client(await server.connect())
        async with client.stream:
            for headers, body in (
                ([*post, (b"content-type", b"application/json")], item),
                (connect, None),
            ):
                stream = client.connection.get_next_available_stream_id()
                client.connection.send_headers(stream, headers)
                if body is not None:
                    client.connection.send_data(stream, body, end_stream=True)
                await client.flush()
                answer = await client.wait_for(h2.events.ResponseReceived, stream)
                assert dict(answer.headers)[b":status"] == status, headers


# Rule 4: nothing is unpickled.


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def pickled_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Trap()], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.one_loop
async def test_pickles_are_not_read(safe):
    async with safe.lifespan():
        npy = [("content-type", "application/x-npy")]
        answer = await ask(safe, "/array", body=pickled_npy(), headers=npy)
        assert answer.status == 422
        async with opened(safe, "/array") as socket:
            socket.say(b'{"id":1}\n' + pickled_npy())
            assert (await socket.read())["error"]["status"] == 422
        tensor = {"name": "items", "shape": [1], "datatype": "BYTES"}
        data = pickle.dumps(Trap())
        data = len(data).to_bytes(4, "little") + data
        inputs = json.dumps(
            {"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}
        ).encode()
        length = ("inference-header-content-length", str(len(inputs)))
        answer = await ask(safe, "/v2/models/array/infer", body=inputs + data, headers=[length])
        assert answer.status == 400
        packed = ormsgpack.packb(ormsgpack.Ext(1, pickle.dumps(Trap())))
        kind = ("content-type", "application/msgpack")
        assert (await ask(safe, "/any", body=packed, headers=[kind])).status == 400


# Rules 6 and 9: names that callers choose are checked, echoed in no header, and no labels.

FORGED = "\r\nX-Forged: yes\r\n\r\n"


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_nothing_that_a_caller_names_becomes_a_header(safe):
    quoted = "%0d%0aX-Forged:%20yes%0d%0a%0d%0a"
    forged = json.dumps(FORGED).encode()
    named = b'{"model":%b,"prompt":"a","input":"a","messages":[{"role":"user","content":"a"}]}'
    infer = {"inputs": [{"name": "items", "shape": [1], "datatype": "INT32", "data": [1]}]}
    sent = [
        *(
            head("POST", path, "Host: a", "Content-Type: application/json", body=named % forged)
            for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
        ),
        *(
            head(
                "POST",
                f"/v2/models/{model}/infer",
                "Host: a",
                "Content-Type: application/json",
                body=json.dumps({**infer, "id": FORGED, "outputs": outputs}).encode(),
            )
            for model in ("any", quoted)
            for outputs in ([], [{"name": FORGED}])
        ),
        *(
            head("GET", path + quoted, "Host: a")
            for path in ("/v1/models/", "/v2/models/", "/any/", "/any?", "/-/docs/", "/")
        ),
        *(
            head("GET", "/any?a=1", "Host: a", f"{name}: a{odd}b")
            for name in ("X-Request-ID", "X-Serve-Call-Method", "Last-Event-ID", "traceparent")
            for odd in ("\t", "\x85", "é", "%0d%0a", "\\r\\n")
        ),
    ]
    async with live(safe) as server:
        for one in sent:
            answer = await server.talk(one)
            top = answer.partition(b"\r\n\r\n")[0].lower()
            assert b"\r\nx-forged" not in top, one
            for line in top.split(b"\r\n")[1:]:
                assert line.partition(b":")[2].strip().isascii(), line


@pytest.mark.one_loop
async def test_models_that_callers_name_are_no_labels(safe):
    async with safe.lifespan():
        for number in range(50):
            name = f"made-up-{number}"
            messages = [{"role": "user", "content": "a"}]
            for path, body in (
                ("/v1/completions", {"model": name, "prompt": "a"}),
                ("/v1/chat/completions", {"model": name, "messages": messages}),
                ("/v1/embeddings", {"model": name, "input": "a"}),
                (f"/v2/models/{name}/infer", {"inputs": []}),
                (f"/v2/models/any/versions/{name}/infer", {"inputs": []}),
                (f"/{name}", 1),
            ):
                assert (await ask(safe, path, body)).status == 404
            await ask(safe, "/any", 1, headers=[("x-serve-call-method", name), ("x-priority", "9")])
            async with opened(safe, "/any") as socket:
                socket.say(id=name, item=1)
                assert await socket.read() == {"id": name, "result": 1}
        metrics = (await ask(safe, "/-/metrics", method="GET")).body.decode()
    assert 'endpoint="any"' in metrics
    assert "made-up" not in metrics


# Rule 7: one caller's bad item fails no other's.

INVALID = {
    "json": b'{"a":',
    "form": b'{"a":',
    "oip": b"[1]",
    "completions": b"{}",
    "chat": b"1",
    "embeddings": b"[1,{}]",
}


async def test_a_bad_item_of_any_protocol_fails_alone(safe):
    safe.seen.go = anyio.Event()
    async with safe.lifespan():
        good = [
            Call(safe, way.path, body=way.body(b'"good"'), headers=way.headers)
            for name, way in WAYS.items()
            if name in TAKE_TEXT
        ]
        async with calling(*good):
            await anyio.sleep(1)
            for name, text in INVALID.items():
                answer = await send(safe, WAYS[name], text)
                assert answer.status == 400, (name, answer.body)
                assert b"good" not in answer.body
            safe.seen.go.set()
            for call in good:
                await call.until(lambda call: call.is_complete)
                assert call.status == 200
                assert b"error" not in call.body


# Rule 8: overload is answered at once, and says when to come back.


@pytest.mark.parametrize("name", TAKE_TEXT)
async def test_overload_is_answered_at_once(name, safe):
    safe.seen.go = anyio.Event()
    way = WAYS[name]
    async with safe.lifespan():
        # Two batches of four may be needed to fill what runs, and two requests wait.
        held = [Call(safe, way.path, body=way.body(b'"x"'), headers=way.headers) for _ in range(20)]
        async with calling(*held) as tasks:
            await anyio.sleep(0.1)
            began = anyio.current_time()
            answer = await send(safe, way, b'"x"')
            assert anyio.current_time() == began
            assert answer.status in (429, 503)
            assert int(answer.headers["retry-after"]) >= 1
            check_error(way, answer)
            tasks.cancel_scope.cancel()


# Rule 9: no payload is in a log, at any level.

SECRET = "sesame"
ODD_SECRET = "\x00sesame\ud800"


class Raw:
    """Sends requests on connections of their own, and reads all that comes back."""

    def __init__(self, server):
        self._server = server

    async def post(self, path, body, *headers, method="POST"):
        lines = ["Host: shoal.test", f"Authorization: Bearer {SECRET}", f"Cookie: a={SECRET}"]
        sent = head(method, path, *lines, *headers, body=body)
        assert (await self._server.talk(sent)).startswith(b"HTTP/1.1 ")

    async def websocket(self, path, *messages: Message):
        async with await self._server.connect() as client:
            lines = [
                *(f"GET {path}?token={SECRET} HTTP/1.1", "Host: shoal.test"),
                *("Connection: Upgrade", "Upgrade: websocket", f"Cookie: a={SECRET}"),
                *("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"),
                *("Sec-WebSocket-Protocol: shoal.v1", "", ""),
            ]
            await client.send_all("\r\n".join(lines).encode())
            await read_until(client, b"\r\n\r\n")
            peer = WebSocket(ConnectionType.CLIENT)
            for message in messages:
                await client.send_all(peer.send(message))
                await client.receive_some()

    async def http2(self, path, body, *headers):
        client = Http2Client(await self._server.connect())
        async with client.stream:
            authorized = (b"authorization", b"Bearer " + SECRET.encode()), *headers
            stream = client.ask(path.encode(), method=b"POST", headers=authorized, body=body)
            await client.flush()
            await client.wait_for(h2.events.ResponseReceived, stream)


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_no_payload_is_in_a_log_at_any_level(caplog):
    app = safe_app(debug=False, max_body_bytes=MIB)

    @app.endpoint("/fail", name="fail")
    async def fail(items: list[Any]) -> list[Any]:
        raise RuntimeError("the model broke")

    @app.endpoint("/unsendable", name="unsendable")
    async def unsendable(items: list[Any]) -> list[Any]:
        return [object() for _ in items]

    @app.endpoint("/header", name="header")
    async def header(items: list[Any]) -> list[Any]:
        from starlette.responses import Response

        return [Response(headers={"x-said": f"{item}\n"}) for item in items]

    @app.endpoint("/few", name="few")
    async def few(items: list[str]) -> list[str]:
        return [*items, *items]

    load_stream_protocols()  # as a server does soon, lest the client's own coder is heard first
    kind = "Content-Type: application/json"
    with caplog.at_level(logging.DEBUG):
        async with live(app, access_log=True) as server:
            raw = Raw(server)
            for way in WAYS.values():
                lines = [f"{name}: {value}" for name, value in way.headers]
                for secret in (SECRET, ODD_SECRET, {"a": SECRET}, [SECRET]):
                    text = json.dumps(secret).encode()
                    await raw.post(f"{way.path}?token={SECRET}", way.body(text), *lines)
                await raw.post(way.path, way.body(SECRET.encode()), *lines)
                await raw.post(way.path, SECRET.encode(), kind, f"Content-Encoding: {SECRET}")
                await raw.post(way.path, b"", *lines, f"{SECRET}: {SECRET}\x00")
                pairs = [(name.encode(), value.encode()) for name, value in way.headers]
                await raw.http2(way.path, way.body(json.dumps(SECRET).encode()), *pairs)
            for path in ("/fail", "/unsendable", "/header", "/few", "/nowhere"):
                text = json.dumps(SECRET).encode()
                await raw.post(path, text, kind)
                await raw.http2(path, text, (b"content-type", b"application/json"))
                inputs = WAYS["oip"].body(text)
                await raw.post(f"/v2/models{path}/infer", inputs, kind)
                named = json.dumps({"model": path[1:], "prompt": SECRET}).encode()
                await raw.post("/v1/completions", named, kind)
                if path != "/nowhere":
                    await raw.websocket(path, TextMessage(json.dumps({"id": 1, "item": SECRET})))
            npy = io.BytesIO()
            np.save(npy, np.array([SECRET]))
            for body, media_type in (
                (npy.getvalue(), "application/x-npy"),
                (ormsgpack.packb({SECRET: SECRET}), "application/msgpack"),
                (SECRET.encode(), "application/msgpack"),
                (SECRET.encode(), "application/x-npy"),
                (gzip.compress(SECRET.encode()), "application/json\r\nContent-Encoding: gzip"),
                (SECRET.encode(), "application/json\r\nContent-Encoding: gzip"),
                (b"--" + SECRET.encode(), f"multipart/form-data; boundary={SECRET}"),
            ):
                for path in ("/any", "/array", "/photo"):
                    await raw.post(path, body, f"Content-Type: {media_type}")
            for messages in (
                [TextMessage(json.dumps({"id": SECRET, "item": SECRET}))],
                [TextMessage(SECRET)],
                [TextMessage(json.dumps({"id": 1, "item": {"a": SECRET}, SECRET: 1}))],
                [BytesMessage(SECRET.encode())],
                [BytesMessage(b'{"id":1}\n' + SECRET.encode())],
            ):
                for path in ("/any", "/array", "/stream"):
                    await raw.websocket(path, *messages)
            async with await server.connect() as client:  # no HTTP at all
                await client.send_all(SECRET.encode() + b"\r\n\r\n")
                await read_all(client)
            async with httpx.AsyncClient() as client:
                url = f"http://127.0.0.1:{server.port}/any?token={SECRET}"
                await client.get(url)
    records = [record for record in caplog.records if record.name not in OF_CLIENTS]
    assert any("the model broke" in caplog.handler.format(record) for record in records)
    leaks = {
        (record.name, caplog.handler.format(record)[:300])
        for record in records
        if SECRET in caplog.handler.format(record) or SECRET in repr(record.args)
    }
    assert leaks == set()


# What the clients of these tests log themselves.
OF_CLIENTS = {"httpx", "httpcore.connection", "httpcore.http11"}
