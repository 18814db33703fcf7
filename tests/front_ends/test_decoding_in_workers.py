"""Workers decode the items of endpoints without classes of the user, and write arrays as JSON."""

import gzip
import json
import socket
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from annotated_types import Gt
from anyio.from_thread import start_blocking_portal
from live_server import live
from pydantic import AfterValidator, BaseModel, HttpUrl, ImportString

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.http.json.decoder import description_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


class Point(BaseModel):
    x: float


CHANGED = np.zeros(1000)


class Spy:
    """An application that notes what the workers have decoded of each request without "x-unseen".

    An array is changed when a request has been answered.
    """

    def __init__(self, app):
        self.app = app
        self.decoded = []

    async def __call__(self, scope, receive, send):
        is_seen = (b"x-unseen", b"1") not in scope.get("headers", ())
        if scope["type"] == "http" and scope["method"] == "POST" and is_seen:
            decoded = scope["extensions"]["shoal.decoded"]["decoded"]
            self.decoded.append(None if decoded is None else decoded[1])
        await self.app(scope, receive, send)
        CHANGED[:] = 2


def same_of(kind):
    """A handler of items of a type, which returns them."""

    async def handler(items):
        return items

    handler.__annotations__ = {"items": list[kind], "return": list[Any]}
    return handler


class Server:
    """One worker, a client of it, and what it has decoded."""

    def __init__(self, app, spy, client, portal):
        self.app = app
        self.decoded = spy.decoded
        self.client = client
        self._portal = portal

    def post(self, content, path, **headers):
        kind = {"content-type": "application/json"}
        return self.client.post(path, content=content, headers={**kind, **headers})

    def decoding(self, content, path):
        """Sends requests until the worker has decoded one, and returns its response."""
        while True:
            answer = self.post(content, path)
            if self.decoded[-1] is not None:
                return answer
            time.sleep(0.01)  # the worker builds the decoder in a thread

    def move(self, endpoint, handler, **options):
        controller = self.app.controller
        self._portal.call(partial(controller.create_backend, f"new-{endpoint}", handler, **options))
        self._portal.call(controller.set_traffic, endpoint, {f"new-{endpoint}": 1.0})


@contextmanager
def served(app, loop):
    spy = Spy(app)
    with (
        start_blocking_portal(loop) as portal,
        portal.wrap_async_context_manager(live(spy, workers=1, hang_s=120)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        yield Server(app, spy, client, portal)


def positive(x: int) -> int:
    return abs(x)


KINDS = {
    "times": list[datetime],
    "refused": list[Annotated[float, Gt(0)]],
    "model": Point,
    "marked": Annotated[int, AfterValidator(positive)],
    "url": HttpUrl | int,
    "earlier": str | int,
    "plain": int,
    "own": int,
    "lists": list[list[Any]],
}


@pytest.fixture(scope="module", params=["trio", "asyncio"])
def server(request):
    app = shoal.App(max_body_bytes=200_000, max_json_elements=20_000)
    for name, kind in KINDS.items():
        app.endpoint(f"/{name}", name=name)(same_of(kind))
    app.endpoint("/paths/{name}", name="paths")(same_of(int))
    app.endpoint("/code", name="code")(Code)

    @app.endpoint("/several")
    async def several(names: list[str], counts: list[int] = 3) -> list[str]:  # type: ignore[assignment]
        return [f"{name} {count}" for name, count in zip(names, counts, strict=True)]

    @app.endpoint("/arrays/{n:int}", name="arrays")
    async def arrays(items: list[int]) -> list[Any]:
        return [list(ARRAYS.values())[item] for item in items]

    @app.endpoint("/changed")
    async def changed(items: list[int]) -> list[Any]:
        CHANGED[:] = 1
        return [CHANGED for _ in items]

    with served(app, request.param) as server:
        yield server


class Code:
    async def __call__(self, items: list[int]) -> list[int]:
        return items

    async def upper(self, texts: list[str]) -> list[str]:
        return [text.upper() for text in texts]


def test_a_worker_decodes_items_of_plain_types(server):
    answer = server.decoding(b'["2026-01-02T03:04:05Z"]', "/times")
    assert answer.json() == ["2026-01-02T03:04:05+00:00"]
    assert server.decoded[-1] == [datetime.fromisoformat("2026-01-02T03:04:05+00:00")]


def test_several_parameters_with_defaults(server):
    assert server.decoding(b'{"names": "a"}', "/several").json() == "a 3"
    assert server.decoding(b'{"names": "a", "counts": 4}', "/several").json() == "a 4"


REFUSED = {
    "another type": (b'["a"]', {}, 422),
    "not JSON": (b"[1", {}, 400),
    "NaN": (b"[NaN]", {}, 400),
    "too many values": (b"[" + b"1," * 25_000 + b"1]", {}, 413),
    "too large": (b"[" + b" " * 250_000 + b"1]", {}, 413),
    "another media type": (b"[1]", {"content-type": "text/plain"}, 415),
    "a wrong coding": (b"[1]", {"content-encoding": "gzip"}, 400),
    "a wrong timeout": (b"[1]", {"x-request-timeout": "soon"}, 400),
    "no such method": (b"[1]", {"x-serve-call-method": "nothing"}, 404),
}


def test_what_is_refused_is_refused_as_before(server):
    def refusals():
        for content, headers, status in REFUSED.values():
            answer = server.post(content, "/refused", **headers)
            problem = answer.json()
            problem.pop("instance")
            assert answer.status_code == status
            yield problem

    before = list(refusals())
    server.decoding(b"[1.5]", "/refused")
    assert list(refusals()) == before


def test_a_worker_loads_no_code_of_the_user(server):
    for path, content in (("/model", b'{"x": 1}'), ("/marked", b"-1")):
        assert server.post(content, path).status_code == 200
    server.decoding(b"1", "/plain")
    server.decoded.clear()
    assert server.post(b'{"x": 1}', "/model").json() == {"x": 1.0}
    assert server.post(b"-1", "/marked").json() == 1
    assert server.decoded == [None, None]


@pytest.fixture(scope="module", params=["trio", "asyncio"])
def large(request):
    app = shoal.App(max_json_elements=10**6)
    app.endpoint("/floats", name="floats")(same_of(list[float]))
    with served(app, request.param) as server:
        server.decoding(b"[1.5]", "/floats")
        yield server


def test_a_large_body_is_decoded_once_all_of_it_has_arrived(large):
    item = [n / 7 for n in range(20_000)]
    content = json.dumps(item).encode()
    parts = (content[start : start + 100_000] for start in range(0, len(content), 100_000))
    length = {"content-length": str(len(content))}
    assert large.post(parts, "/floats", **length).json() == item
    assert large.decoded[-1] == item
    too_large = json.dumps(item * 5).encode()
    assert len(too_large) > 2**20
    assert large.post(too_large, "/floats").json() == item * 5
    assert large.decoded[-1] is None


def test_a_client_that_leaves_within_a_large_body_leaves_nothing_behind(large):
    def half():
        yield b"[" + b"1," * 100_000
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        large.post(half(), "/floats", **{"content-length": "900000"})
    assert large.post(b"[2.5]", "/floats").json() == [2.5]
    assert [2.5] in large.decoded


def test_incomplete_bodies_are_held_up_to_a_bound(large):
    head = b"POST /floats HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n[" % 2**20
    address = large.client.base_url.host, large.client.base_url.port
    assert large.post(b"[2.5]", "/floats").json() == [2.5]
    before = len(large.decoded)
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(33)]
        for connection in connections:
            connection.sendall(head)
        while len(large.decoded) == before:  # the server gets the one that does not fit
            time.sleep(0.01)
        for connection in connections:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # none of them has been answered meanwhile
                connection.recv(1)
        assert large.decoded[before] is None
    item = [n / 7 for n in range(10_000)]
    while large.decoded[-1] != item:
        assert large.post(json.dumps(item).encode(), "/floats").json() == item


def test_an_item_that_cant_be_sent_is_decoded_by_the_server(server):
    server.decoding(b"1", "/url")
    assert server.post(b'"http://a.b/"', "/url").json() == "http://a.b/"


def test_an_item_decoded_for_an_earlier_backend_is_decoded_again(server):
    server.decoding(b'"7"', "/earlier")
    server.move("earlier", same_of(int))
    assert server.post(b'"8"', "/earlier").json() == 8
    assert server.decoded[-1] == "8"  # by the decoder of the earlier backend
    assert server.post(b'"many"', "/earlier").status_code == 422
    while server.decoded[-1] != 9:  # the decoder of this backend has taken its place
        assert server.post(b'"9"', "/earlier").json() == 9
        time.sleep(0.01)


def test_a_backend_with_its_own_decode_gets_the_body(server):
    async def decode(request):
        return int(await request.body()) + 100

    server.decoding(b"7", "/own")
    server.move("own", same_of(int), config={"decode": decode})
    assert server.post(b"8", "/own").json() == 108
    assert server.post(b"8", "/own").json() == 108
    assert server.decoded[-2:] == [8, None]  # no item is made in vain


ARRAYS = {
    "float32": np.linspace(0, 1, 600, dtype=np.float32),
    "not a number": np.full(300, np.nan),
    "two dimensions, not contiguous": np.arange(900).reshape(30, 30).T[::2],
    "another order of bytes": np.arange(600, dtype=">i4"),
    "booleans": np.arange(2000) % 2 == 0,
    "complex": np.arange(300) * 1j,
    "of texts": np.array(["a"] * 600),
    "small": np.arange(3),
}


@pytest.mark.parametrize("n", range(len(ARRAYS)), ids=list(ARRAYS))
def test_a_result_that_is_an_array_is_the_same_as_before(server, n):
    path = f"/arrays/{n}"
    before = server.post(b"%d" % n, path)
    after = server.decoding(b"%d" % n, path)
    for answer in (before, after):
        answer.headers.pop("x-request-id")
        answer.headers.pop("date", None)
    assert (after.status_code, after.headers) == (before.status_code, before.headers)
    if before.status_code == 200:
        assert after.content == before.content


def test_an_array_that_is_changed_after_it_was_sent_is_received_as_it_was(server):
    assert set(server.decoding(b"1", "/changed").json()) == {1.0}


def test_a_worker_is_taught_any_number_of_paths(server, monkeypatch):
    monkeypatch.setattr("shoal.front_ends.remote_call.MOST_TAUGHT", 3)
    for n in range(6):
        assert server.decoding(b"1", f"/paths/{n}").json() == 1
    server.decoded.clear()
    for _ in range(2):  # a client can't fill the memory with long ones
        assert server.post(b"1", f"/paths/{'a' * 300}").json() == 1
    assert server.decoded == [None, None]


def test_what_may_cost_more_than_its_size_is_decoded_by_the_server(server):
    server.decoding(b"[]", "/lists")
    large = gzip.compress(b"[" + b" " * 100_000 + b"]")
    assert server.post(large, "/lists", **{"content-encoding": "gzip"}).json() == []
    assert server.decoded[-1] is None
    assert server.post(b"[" + b"[]," * 4000 + b"[]]", "/lists").json() == [[]] * 4001
    assert server.decoded[-1] in (None, [[]] * 4001)


def test_another_method_of_the_code_is_not_decoded(server):
    other = {"x-serve-call-method": "upper"}
    server.decoding(b"1", "/code")
    server.decoded.clear()
    for _ in range(2):
        assert server.post(b'"a"', "/code", **other).json() == "A"
        assert server.post(b"2", "/code").json() == 2
    assert server.decoded == [None, 2, None, 2]


BODIES = []


def middleware(app):
    """Changes bodies of one path; reads bodies, names their type or marks responses, if asked."""

    async def call(scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        headers = dict(scope["headers"])

        async def doubled():
            message = await receive()
            return {**message, "body": b"%d" % (2 * int(message["body"]))}

        if scope["path"] == "/doubled":
            await app(scope, doubled, send)
        elif b"x-read" in headers:
            message = await receive()
            BODIES.append(message["body"])

            async def again():
                return message

            await app(scope, again, send)
        elif b"x-text" in headers:
            headers[b"content-type"] = b"text/plain"
            await app({**scope, "headers": list(headers.items())}, receive, send)
        elif b"x-mark" in headers:

            async def marked(message):
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], (b"x-mark", b"1")]}
                await send(message)

            await app(scope, receive, marked)
        else:
            await app(scope, receive, send)

    return call


@pytest.fixture(scope="module", params=["trio"])
def with_middleware(request):
    app = shoal.App(middleware=[middleware], server_timing="always")
    app.endpoint("/x", name="x")(same_of(int))
    app.endpoint("/doubled", name="doubled")(same_of(int))

    @app.endpoint("/zeros", methods=("POST",))
    async def zeros(items: list[int]) -> list[Any]:
        return [np.zeros(500) for _ in items]

    with served(app, request.param) as server:
        yield server


def test_middleware_that_changes_the_body_is_obeyed(with_middleware):
    with_middleware.decoded.clear()
    for n in range(50):
        assert with_middleware.post(b"%d" % n, "/doubled").json() == 2 * n
    assert {*with_middleware.decoded} == {None}  # nothing is decoded whose body is asked for


def test_middleware_that_only_reads_the_body_gets_it(with_middleware):
    with_middleware.decoding(b"7", "/x")
    assert with_middleware.post(b"8", "/x", **{"x-read": "1"}).json() == 8
    assert with_middleware.decoded[-1] == 8
    # Whether anything has asked for the item before.
    assert with_middleware.post(b"9", "/x", **{"x-read": "1", "x-unseen": "1"}).json() == 9
    assert BODIES == [b"8", b"9"]


def test_middleware_that_changes_the_media_type_is_obeyed(with_middleware):
    with_middleware.decoding(b"1", "/x")
    assert with_middleware.post(b"1", "/x", **{"x-text": "1"}).status_code == 415


def test_middleware_that_changes_the_response_is_obeyed(with_middleware):
    with_middleware.decoding(b"1", "/x")
    assert with_middleware.post(b"1", "/x", **{"x-mark": "1"}).headers["x-mark"] == "1"


def test_arrays_are_answered_with_all_that_a_response_has(with_middleware):
    answer = with_middleware.decoding(b"1", "/zeros")
    assert "server-timing" in answer.headers
    npy = with_middleware.post(b"1", "/zeros", accept="application/x-npy")
    assert npy.headers["content-type"] == "application/x-npy"
    own_id = with_middleware.post(b"1", "/zeros", **{"x-request-id": "mine"})
    assert own_id.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    ("item", "is_described"),
    [
        (list[dict[str, float | None]], True),
        (Annotated[str, Gt("a")], True),
        (list[Point], False),
        (Annotated[int, AfterValidator(positive)], False),
        (ImportString[Any], False),  # it would load what a client names
    ],
)
def test_only_what_needs_no_code_of_the_user_is_described(item, is_described):
    one = Parameter("item", Parameter.POSITIONAL_OR_KEYWORD, annotation=item)
    signature = Signature([one], return_annotation=Point)
    assert (description_of(signature, HttpOptions()) is not None) == is_described


@pytest.mark.parametrize(
    ("default", "is_described"), [(None, True), (1.5, True), (object(), False), (np.nan, False)]
)
def test_a_default_that_code_may_compare_by_identity_is_not_described(default, is_described):
    one = Parameter("item", Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=Any)
    assert (description_of(Signature([one]), HttpOptions()) is not None) == is_described
