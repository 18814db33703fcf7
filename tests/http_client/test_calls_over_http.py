"""Calls of a real server by the client, on a real socket."""

import dataclasses
import gc
import io
import itertools
from contextlib import suppress

import anyio
import httpx
import numpy as np
import pydantic
import pytest
from servers import Held, Steps, app_with, headers_of, raw_server, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import shoal
from certificates import new_certificate
from shoal import errors
from shoal.http_client import HttpClient
from shoal.http_client.bodies import result_of
from shoal.http_client.connection import SILENCE_S
from shoal.testing import settle

pytestmark = pytest.mark.real_time
ERRORS = {
    name: getattr(errors, name)("x")
    for name in (
        *("BackendUnavailable", "BatcherClosed", "DeadlineExceeded", "HandlerTimeout"),
        *("ItemTooLarge", "NoSuchModel", "Overloaded", "ReplicaDied", "SlowReader"),
    )
}


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


@dataclasses.dataclass
class Place:
    x: int
    y: int


def echo(items: list) -> list:
    return items


def lengths(items: list[bytes]) -> list[int]:
    return [len(item) for item in items]


def points(items: list[Point]) -> list[Point]:
    return [Point(x=item.y, y=item.x) for item in items]


def sums(items: list[np.ndarray]) -> list[float]:
    return [float(item.sum()) for item in items]


def doubled(items: list[np.ndarray]) -> list[Response]:
    return [npy(item * 2) for item in items]


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return Response(file.getvalue(), media_type="application/x-npy")


def thirds(items: list[int]) -> list[int | Exception]:
    return [ValueError(item) if item % 3 else item // 3 for item in items]


class Spy:
    """Forwards requests, and notes their media types."""

    def __init__(self, app):
        self.app = app
        self.types = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            self.types.append(Request(scope).headers.get("content-type"))
        await self.app(scope, receive, send)


async def test_a_data_set_is_sent_as_lines_and_bytes_in_requests_of_their_own():
    app = shoal.App()
    app.endpoint("/echo", name="echo")(echo)
    app.endpoint("/thirds", name="thirds")(thirds)
    app.endpoint("/lengths", name="lengths")(lengths)
    spy = Spy(app)
    async with served(spy) as url, HttpClient(url) as client:
        assert await client.map("/echo", range(600)) == list(range(600))
        assert spy.types == ["application/x-ndjson"] * 3
        results = client.map("/echo", itertools.count(), window=8)
        assert [await anext(results) for _ in range(30)] == list(range(30))
        await results.aclose()
        texts = ["a\nb", "", None, {"a": [1.5]}]
        assert [one async for one in client.map("/echo", iter(texts))] == texts
        results = await client.map("/thirds", range(4), return_exceptions=True)
        assert results[::3] == [0, 1]
        assert {type(one) for one in results[1:3]} == {errors.HttpProblem}
        with pytest.raises(errors.HttpProblem, match="422"):
            await client.map("/thirds", [3, "eel"])
        spy.types.clear()
        assert await client.map("/lengths", [b"a" * n for n in range(5)]) == list(range(5))
        assert spy.types == ["application/octet-stream"] * 5
        with pytest.raises(errors.HttpProblem, match="404"):
            await client.map("/nowhere", [1])
        with pytest.raises(ValueError, match="slash"):
            client.map("nowhere", [1])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"result": 1}', "left results out"),
        (b'{"result": 1}\n{"result": 2}\n{"result": 3}', "left results out"),
        (b"what", "did not answer with JSON lines"),
        (b'{"answer": 1}\n{"answer": 2}', "did not answer with JSON lines"),
        (b"[]\n[]", "did not answer with JSON lines"),
    ],
)
async def test_a_server_that_does_not_answer_each_line_fails_all(body, said):
    def answer(_: Request) -> Response:
        return Response(body, media_type="application/x-ndjson")

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    async with served(app) as url, HttpClient(url) as client:
        results = await client.map("/", [1, 2], return_exceptions=True)
        assert [type(one) for one in results] == [ConnectionError] * 2
        assert results[0] is not results[1]
        with pytest.raises(ConnectionError, match=said):
            await client.map("/", [1, 2])


ITEMS = [
    ("/echo", "text", "text"),
    ("/echo", {"a": [1, None, 2.5, "\u00fc\U0001f41f"]}, {"a": [1, None, 2.5, "\u00fc\U0001f41f"]}),
    ("/echo", None, None),
    ("/echo", np.float32(1.5), 1.5),
    ("/echo", {"vector": np.arange(3)}, {"vector": [0, 1, 2]}),
    ("/echo", Place(1, 2), {"x": 1, "y": 2}),
    ("/points", Point(x=1, y=2), {"x": 2, "y": 1}),
    ("/points?x=5&y=6", ..., {"x": 6, "y": 5}),
    ("/lengths", b"12345", 5),
    ("/lengths", memoryview(bytearray(7)), 7),
    ("/sums", np.arange(5.0), 10.0),
    ("/sums", [1, 2, 3], 6.0),
]


async def test_an_item_goes_there_and_its_result_comes_back():
    app = app_with(echo=echo, lengths=lengths, points=points, sums=sums)
    async with served(app) as url, HttpClient(url) as client:
        for path, item, result in ITEMS:
            assert await client.call(path, item) == result, (path, item)


async def test_a_result_may_be_an_array_or_bytes():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    async with served(app_with(doubled=doubled, echo=echo)) as url, HttpClient(url) as client:
        for wanted in (None, "npy"):
            found = await client.call("/doubled", array, result=wanted)
            assert found.dtype == np.int16
            assert (found == array * 2).all()
        found = await client.call("/doubled", array, result="bytes")
        assert found.startswith(b"\x93NUMPY")
        assert await client.call("/echo", [1], result="bytes") == b"[1]"
        assert (await client.call("/echo", [1, 2], result="npy") == np.array([1, 2])).all()
        with pytest.raises(TypeError, match="answered with application/x-npy, not with json"):
            await client.call("/doubled", array, result="json")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("media_type", ["application/json", "application/x-npy"])
def test_a_result_that_is_not_what_it_is_said_to_be_is_no_result(body, media_type):
    with pytest.raises(ConnectionError, match=f"u did not answer with {media_type}"):
        result_of(body, media_type, None, "u")


def nested(depth, kind=list):
    found = None
    for _ in range(depth):
        found = [found] if kind is list else {"": found}
    return found


def itself():
    found = []
    found.append(found)
    return found


def files_of_no_array():
    file, archive, objects = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(file, np.arange(3))
    np.savez(archive, a=np.arange(3))
    np.save(objects, np.array([{}], dtype=object))
    good = file.getvalue()
    return {
        "an archive": archive.getvalue(),
        "half of an archive": archive.getvalue()[:100],
        "a shape of terabytes": good.replace(b"(3,), }" + 13 * b" ", b"(99999999999999,), }"),
        "a header that does not end": good.replace(b"'fortran_order'", b"'''rtran_order'"),
        "a part of the data": good[:-4],
        "an array of objects": objects.getvalue(),
    }


@pytest.mark.parametrize("what", files_of_no_array())
def test_a_file_that_is_no_array_is_no_result(what):
    with pytest.raises(ConnectionError, match="u did not answer with application/x-npy"):
        result_of(files_of_no_array()[what], "application/x-npy", None, "u")


@pytest.mark.parametrize(
    ("item", "error", "words"),
    [
        ({1: 2}, TypeError, "the key 1"),
        (object(), TypeError, "can't be sent as JSON"),
        (Place, TypeError, "can't be sent as JSON"),
        (float("nan"), ValueError, "can't be sent as JSON"),
        ("\ud800", ValueError, "surrogates not allowed"),
        (nested(100_000), ValueError, "nested too deeply"),
        (nested(100_000, dict), ValueError, "nested too deeply"),
        (itself(), ValueError, "too deeply, or contains itself"),
        (np.array([{}], dtype=object), ValueError, "Object arrays"),
    ],
)
async def test_an_item_that_cannot_be_sent_is_refused(item, error, words):
    async with HttpClient("http://127.0.0.1:1") as client:
        with pytest.raises(error, match=words):
            await client.call("/echo", item)
        with pytest.raises(error, match=words):
            client.stream("/echo", item)


def answered_by(answer, **options):
    """A client of httpx whose responses a function makes of the request and its pieces."""

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            return await answer(request, [piece async for piece in request.stream])

    return httpx.AsyncClient(transport=Transport(), **options)


@pytest.mark.parametrize("size", [10, 2**20])
async def test_a_body_is_sent_in_pieces_that_each_have_the_time_of_a_write(size):
    async def answer(request, pieces):
        assert request.headers["content-length"] == str(size)
        assert "transfer-encoding" not in request.headers
        assert request.extensions["timeout"]["write"] == SILENCE_S
        assert max(map(len, pieces)) <= 2**17
        return httpx.Response(200, json=len(b"".join(pieces)))

    async with HttpClient("http://x", client=answered_by(answer)) as client:
        assert await client.call("/x", bytes(size)) == size


@pytest.mark.parametrize(
    ("first", "headers", "options"),
    [
        (307, {"location": "/x"}, {"follow_redirects": True}),
        (
            401,
            {"www-authenticate": 'Digest realm="a", nonce="b", qop="auth"'},
            {"auth": httpx.DigestAuth("u", "p")},
        ),
    ],
    ids=["redirect", "credentials"],
)
async def test_a_body_is_sent_again_if_the_server_asks_for_it(first, headers, options):
    bodies = []

    async def answer(_request, pieces):
        bodies.append(b"".join(pieces))
        if len(bodies) == 1:
            return httpx.Response(first, headers=headers)
        return httpx.Response(200, json=len(bodies[-1]))

    async with HttpClient("http://x", client=answered_by(answer, **options)) as client:
        assert await client.call("/x", b"herring") == 7
    assert bodies == [b"herring"] * 2


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_no_more_is_read_than_memory_should_hold(streams, monkeypatch):
    monkeypatch.setattr("shoal.http_client.connection._MOST_BYTES", 1000)
    taken = 0

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self):
            nonlocal taken
            while True:
                await anyio.lowlevel.checkpoint()
                taken += 1
                yield b"1" * 100

    async def all_of(client):
        if not streams:
            return await client.call("/x", 1)
        async with client.stream("/x", 1) as items:
            return [item async for item in items]

    async def answer(_request, _pieces):
        kind = {"content-type": "application/x-ndjson" if streams else "application/json"}
        return httpx.Response(200, headers=kind, stream=Body())

    async with HttpClient("http://x", client=answered_by(answer)) as client:
        with pytest.raises(ConnectionError, match="sent more than 1000 bytes"):
            await all_of(client)
    assert taken < 20


async def test_a_problem_of_another_server_is_shown_as_its_json():
    async def answer(_request, _pieces):
        return httpx.Response(422, json={"detail": [{"loc": ["body", "x"], "msg": None}]})

    async with HttpClient("http://x", client=answered_by(answer)) as client:
        with pytest.raises(errors.HttpProblem) as caught:
            await client.call("/x", 1)
    assert '[{"loc": ["body", "x"], "msg": null}]' in str(caught.value)


async def test_a_body_that_is_not_taken_can_be_left():
    async def answer(stream):
        await stream.receive()
        await anyio.sleep_forever()

    async with raw_server(answer) as url, HttpClient(url) as client:
        with anyio.move_on_after(0.05) as scope:
            await client.call("/x", bytes(2**25))
        assert scope.cancelled_caught
        gc.collect()


async def test_an_error_is_of_the_same_class_as_in_the_server():
    def fail(items: list[str]) -> list[str]:
        raise ERRORS[items[0]]

    async with served(app_with(fail=fail)) as url, HttpClient(url, max_attempts=1) as client:
        # In place of a replica that died another is made, which takes a while.
        for name, error in sorted(ERRORS.items(), key=lambda one: one[0] == "ReplicaDied"):
            with pytest.raises(type(error), match=rf"{url}/fail answered \d+: .*request ") as found:
                await client.call("/fail", name)
            assert type(found.value) is type(error)


async def test_another_problem_has_its_members():
    async with served(app_with(points=points)) as url, HttpClient(url) as client:
        with pytest.raises(errors.HttpProblem, match="answered 422") as found:
            await client.call("/points", {"x": "no"})
        assert (found.value.status, found.value.kind) == (422, "invalid-item")
        assert found.value.members["errors"][0]["loc"] == ["x"]
        with pytest.raises(errors.HttpProblem, match="404") as found:
            await client.call("/none", 1)
        assert found.value.kind == "not-found"
        with pytest.raises(errors.HttpProblem, match="405"):
            await client.call("/points", {"x": 1}, method="PUT")


async def test_a_server_that_is_not_there_is_named():
    async with HttpClient("http://127.0.0.1:1", max_attempts=2) as client:
        with pytest.raises(
            ConnectionRefusedError, match=r"no server answers at http://127\.0\.0\.1:1"
        ):
            await client.call("/x", 1)


async def test_a_connection_that_breaks_leaves_it_open_whether_the_call_has_run():
    async with raw_server(lambda stream: stream.receive()) as url, HttpClient(url) as client:
        with pytest.raises(ConnectionError, match="may have been carried out"):
            await client.call("/x", 1)


async def test_a_call_that_is_cancelled_frees_its_place():
    held = Held()
    async with served(app_with(held=held)) as url, HttpClient(url) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call, "/held", 1)
            await held.began.wait()
            tasks.cancel_scope.cancel()
        await held.cancelled.wait()
        held.go.set()
        assert await client.call("/held", 2) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_s": 0.05}, None),
        # As for a client behind a proxy that does not tell that it has left.
        ({"headers": {"X-Request-Timeout": "0.05"}}, "/held answered 504"),
    ],
    ids=["by the client", "by the server"],
)
async def test_a_call_whose_time_is_over_frees_its_place(options, words):
    async def for_ever_or_not(items: list[int]) -> list[int]:
        if items == [1]:
            await anyio.sleep_forever()
        return items

    async with served(app_with(held=for_ever_or_not)) as url, HttpClient(url) as client:
        with pytest.raises(errors.DeadlineExceeded, match=words):
            await client.call("/held", 1, **options)
        assert await client.call("/held", 2) == 2


async def test_a_stream_gives_its_items_and_ends():
    async def steps(items: list[int]):
        for number in range(items[0]):
            yield [{"number": number, "text": "\u2028\n"}]

    async with served(app_with(steps=steps)) as url, HttpClient(url) as client:
        async with client.stream("/steps", 3) as stream:
            found = [item async for item in stream]
            assert found == [{"number": number, "text": "\u2028\n"} for number in range(3)]
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        with pytest.raises(RuntimeError, match="enter the stream first"):
            await anext(client.stream("/steps", 3))


async def test_a_stream_that_fails_gives_what_came_before():
    async def steps(items: list[int]):
        yield items
        raise errors.Overloaded("inside")

    async with (
        served(app_with(steps=steps)) as url,
        HttpClient(url) as client,
        client.stream("/steps", 3) as stream,
    ):
        assert await anext(stream) == 3
        with pytest.raises(errors.Overloaded, match=f"{url}/steps answered 503"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stream_that_is_left_is_left_at_the_server(is_cancelled):
    steps = Steps()
    async with served(app_with(steps=steps)) as url, HttpClient(url) as client:
        async with client.stream("/steps", 1) as stream:
            assert await anext(stream) == 2
            if is_cancelled:  # while it waits for a result
                with anyio.move_on_after(0.02):
                    await anext(stream)
                await steps.ended.wait()
        await steps.ended.wait()


async def test_a_stream_that_another_task_closes_ends_for_the_one_that_reads():
    steps, read, has_read = Steps(), [], anyio.Event()

    async def read_all(stream):
        async for item in stream:
            read.append(item)
            has_read.set()
        read.append("end")

    async with (
        served(app_with(steps=steps)) as url,
        HttpClient(url) as client,
        anyio.create_task_group() as tasks,
        client.stream("/steps", 1) as stream,
    ):
        tasks.start_soon(read_all, stream)
        await has_read.wait()
        await settle()
        await stream.aclose()
        await steps.ended.wait()
    assert read == [2, "end"]


async def test_the_wrong_kind_of_call_is_told():
    steps = Steps()
    async with served(app_with(steps=steps, echo=echo)) as url, HttpClient(url) as client:
        with pytest.raises(TypeError, match=r"use client\.stream"):
            await client.call("/steps", 1, result="bytes")
        await steps.ended.wait()
        with pytest.raises(TypeError, match=r"use client\.call"):
            async with client.stream("/echo", 1):
                pass


async def test_headers_are_those_of_the_client_and_of_the_call():
    async with served(app_with(headers=headers_of)) as url:
        options = {"token": "secret", "headers": {"X-One": "1", "X-Two": "1"}}
        async with HttpClient(url, **options) as client:
            headers = await client.call("/headers", {}, headers={"x-two": "2"})
    assert headers["authorization"] == "Bearer secret"
    assert (headers["x-one"], headers["x-two"]) == ("1", "2")
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"X-A": "a\r\nX-B: b"}, ValueError),
        ({"X-A": "a\x00"}, ValueError),
        ({"X-A": "\u00fc"}, ValueError),
        ({"X A": "a"}, ValueError),
        ({"": "a"}, ValueError),
        ({"X-A\n": "a"}, ValueError),
        ({"X-A": 1}, TypeError),
    ],
)
async def test_headers_that_would_do_harm_are_refused(headers, error):
    sent = []

    async def note(stream):
        sent.append(await stream.receive())

    async with raw_server(note) as url:
        for of_client, of_call in ((headers, None), (None, headers)):
            async with HttpClient(url, headers=of_client) as client:
                with pytest.raises(error) as caught:
                    await client.call("/x", headers=of_call)
            assert "X-B: b" not in str(caught.value)
    assert sent == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        *[(one, "path of an endpoint") for one in ("x", "", "//evil.com/x", "http://evil.com", 5)],
        *[(one, "path") for one in ("/a\nb", "/" + 70_000 * "a", "/a\x00")],
    ],
)
async def test_a_path_that_leads_elsewhere_or_can_not_be_sent_is_refused(path, words):
    async with HttpClient("http://x") as client:
        with pytest.raises((TypeError, ValueError), match=words) as caught:
            await client.call(path)
        assert len(str(caught.value)) < 500
        with pytest.raises((TypeError, ValueError), match=words):
            await client.stream(path).__aenter__()


async def test_options_that_can_not_be_sent_are_refused():
    async with raw_server(anyio.aclose_forcefully) as url, HttpClient(url) as client:
        with pytest.raises(ValueError, match=r"result must be .* not 'xml'"):
            await client.call("/x", result="xml")
        with pytest.raises(ValueError, match="method"):
            await client.call("/x", method="GE T")


def test_a_url_that_is_none_is_refused():
    for url in ("http://x:abc", "http://x:99999", "http://x\ny", "http://a b", "http://[::1"):
        with pytest.raises(ValueError, match=r"shoal\.sock"):
            HttpClient(url)


async def test_a_certificate_that_nobody_trusts_is_refused(tmp_path):
    words = r"no secure connection to https.*CERTIFICATE_VERIFY_FAILED"
    async with (
        served(app_with(echo=echo), **new_certificate(tmp_path)) as url,
        HttpClient(url, max_attempts=1) as client,
    ):
        with pytest.raises(ConnectionError, match=words):
            await client.call("/echo", 5)


async def test_a_url_may_have_a_path_below_which_the_endpoints_are():
    app = app_with(echo=echo)
    outer = Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)])
    async with served(outer) as url, HttpClient(f"{url}/ml/") as client:
        assert await client.call("/echo", 5) == 5


@pytest.mark.parametrize("fails", [False, True])
async def test_the_connection_of_a_stream_that_was_read_is_kept(fails):
    peers = set()

    async def steps(items: list[Request]):
        peers.update(item.client.port for item in items)
        yield [1 for _ in items]
        if fails:
            raise errors.Overloaded("inside")

    async with served(app_with(steps=steps)) as url, HttpClient(url) as client:
        for _ in range(3):
            async with client.stream("/steps", {}) as stream:
                with suppress(errors.Overloaded):
                    assert [item async for item in stream] == [1]
    assert len(peers) == 1


async def test_a_stream_whose_body_goes_on_after_its_end_is_over():
    async def answer(stream):
        await stream.receive()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n"
        await stream.send(head + b'{"item":1}\n{"end":true}\n{"item":2}\n')
        await stream.receive()

    async with raw_server(answer) as url, HttpClient(url) as client:
        async with client.stream("/x", 1) as stream:
            assert [item async for item in stream] == [1]
        assert not client._connection._client._transport._pool.connections


async def test_a_client_that_is_closed_says_so():
    async with HttpClient("http://x") as client:
        pass
    await client.aclose()
    with pytest.raises(errors.ShutDown, match="closed"):
        await client.call("/x", 1)


async def test_calls_that_wait_for_a_connection_end_with_the_client():
    received, ended = [], []
    is_received = anyio.Event()

    async def silent(stream):
        received.append(await stream.receive())
        is_received.set()
        await anyio.sleep_forever()

    of_one = httpx.AsyncClient(limits=httpx.Limits(max_connections=1))
    async with raw_server(silent) as url, anyio.create_task_group() as tasks:
        client = HttpClient(url, client=of_one, timeout_s=None)

        async def call():
            with pytest.raises(errors.ShutDown, match="closed") as caught:
                await client.call("/x")
            ended.append(caught.value)

        for _ in range(3):
            tasks.start_soon(call)
        await is_received.wait()
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
    assert (len(ended), len(received)) == (3, 1)
