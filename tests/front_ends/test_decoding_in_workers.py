"""Workers decode the items of endpoints without classes of the user, and write arrays as JSON."""

from __future__ import annotations

import gzip
import json
from contextlib import asynccontextmanager
from datetime import datetime
from inspect import Parameter, Signature
from typing import Annotated, Any

import anyio
import httpx
import numpy as np
import pytest
from annotated_types import Gt
from anyio.lowlevel import checkpoint
from live_server import live
from pydantic import AfterValidator, BaseModel, HttpUrl, ImportString

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.http.json.decoder import description_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Point(BaseModel):
    x: float


class Spy:
    """An application that notes what the workers have decoded of each request."""

    def __init__(self, app):
        self.app = app
        self.decoded = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["method"] == "POST":
            decoded = scope["extensions"]["shoal.decoded"]["decoded"]
            self.decoded.append(None if decoded is None else decoded[1])
        await self.app(scope, receive, send)


async def same(items: list[Any]) -> list[Any]:
    return items


def same_of(kind):
    """A handler of items of a type, which returns them."""

    async def handler(items):
        return items

    handler.__annotations__ = {"items": list[kind], "return": list[Any]}
    return handler


@asynccontextmanager
async def serving(app, **options):
    """One worker, a client of it, and what it has decoded."""
    spy = Spy(app)
    async with (
        live(spy, workers=1, **options) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        yield client, spy


async def decoding(client, spy, content, path="/x"):
    """Sends requests until the worker has decoded one, and returns its response."""
    with anyio.fail_after(15):
        while True:
            answer = await post(client, content, path)
            if spy.decoded[-1] is not None:
                return answer
            await anyio.sleep(0.01)  # the worker builds the decoder in a thread


async def post(client, content, path="/x", **headers):
    kind = {"content-type": "application/json"}
    return await client.post(path, content=content, headers={**kind, **headers})


async def test_a_worker_decodes_items_of_plain_types():
    app = shoal.App()
    app.endpoint("/x", name="x")(same_of(list[datetime]))
    async with serving(app) as (client, spy):
        answer = await decoding(client, spy, b'["2026-01-02T03:04:05Z"]')
        assert answer.json() == ["2026-01-02T03:04:05+00:00"]
        assert spy.decoded[-1] == [datetime.fromisoformat("2026-01-02T03:04:05+00:00")]


async def test_several_parameters_with_defaults():
    app = shoal.App()

    @app.endpoint("/x", name="x")
    async def x(names: list[str], counts: list[int] = 3) -> list[str]:  # type: ignore[assignment]
        return [f"{name} {count}" for name, count in zip(names, counts, strict=True)]

    async with serving(app) as (client, spy):
        assert (await decoding(client, spy, b'{"names": "a"}')).json() == "a 3"
        assert (await decoding(client, spy, b'{"names": "a", "counts": 4}')).json() == "a 4"


REFUSED = {
    "another type": (b'["a"]', {}, 422),
    "not JSON": (b"[1", {}, 400),
    "NaN": (b"[NaN]", {}, 400),
    "too many values": (b"[" + b"1," * 5000 + b"1]", {}, 413),
    "too large": (b"[" + b" " * 30_000 + b"1]", {}, 413),
    "another media type": (b"[1]", {"content-type": "text/plain"}, 415),
    "a wrong coding": (b"[1]", {"content-encoding": "gzip"}, 400),
    "a wrong timeout": (b"[1]", {"x-request-timeout": "soon"}, 400),
    "no such method": (b"[1]", {"x-serve-call-method": "nothing"}, 404),
}


async def test_what_is_refused_is_refused_as_before():
    app = shoal.App(max_body_bytes=20_000, max_json_elements=4000)
    app.endpoint("/x", name="x")(same_of(list[Annotated[float, Gt(0)]]))
    async with serving(app) as (client, spy):

        async def refusals():
            for content, headers, status in REFUSED.values():
                answer = await post(client, content, **headers)
                problem = answer.json()
                problem.pop("instance")
                assert answer.status_code == status
                yield problem

        before = [problem async for problem in refusals()]
        await decoding(client, spy, b"[1.5]")
        assert [problem async for problem in refusals()] == before


async def test_a_worker_loads_no_code_of_the_user():
    of_users = {"/model": Point, "/marked": Annotated[int, AfterValidator(positive)]}
    app = shoal.App()
    for path, kind in of_users.items():
        app.endpoint(path, name=path[1:])(same_of(kind))
    app.endpoint("/x", name="x")(same_of(int))
    async with serving(app) as (client, spy):
        for path, content in (("/model", b'{"x": 1}'), ("/marked", b"-1")):
            assert (await post(client, content, path)).status_code == 200
        await decoding(client, spy, b"1")
        spy.decoded.clear()
        assert (await post(client, b'{"x": 1}', "/model")).json() == {"x": 1.0}
        assert (await post(client, b"-1", "/marked")).json() == 1
        assert spy.decoded == [None, None]


async def test_a_large_body_is_decoded_once_all_of_it_has_arrived():
    app = shoal.App(max_json_elements=10**6)
    app.endpoint("/x", name="x")(same_of(list[float]))
    item = [n / 7 for n in range(20_000)]
    content = json.dumps(item).encode()
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"[1.5]")

        async def in_parts(of):
            for start in range(0, len(of), 100_000):
                yield of[start : start + 100_000]
                await checkpoint()

        length = {"content-length": str(len(content))}
        assert (await post(client, in_parts(content), **length)).json() == item
        assert spy.decoded[-1] == item
        too_large = json.dumps(item * 5).encode()
        assert len(too_large) > 2**20
        assert (await post(client, too_large)).json() == item * 5
        assert spy.decoded[-1] is None


async def test_a_client_that_leaves_within_a_large_body_leaves_nothing_behind():
    app = shoal.App()
    app.endpoint("/x", name="x")(same_of(list[float]))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"[1.5]")

        async def half():
            yield b"[" + b"1," * 100_000
            raise ConnectionAbortedError

        with pytest.raises(ConnectionAbortedError):
            await post(client, half(), **{"content-length": "900000"})
        assert (await post(client, b"[2.5]")).json() == [2.5]
        assert [2.5] in spy.decoded


async def test_an_item_that_cant_be_sent_is_decoded_by_the_server():
    app = shoal.App()
    app.endpoint("/x", name="x")(same_of(HttpUrl | int))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"1")
        assert (await post(client, b'"http://a.b/"')).json() == "http://a.b/"


async def test_middleware_that_changes_the_body_is_obeyed():
    def doubling(app):
        async def doubled(scope, receive, send):
            async def change():
                message = await receive()
                return {**message, "body": b"%d" % (2 * int(message["body"]))}

            await app(scope, change if scope["type"] == "http" else receive, send)

        return doubled

    app = shoal.App(middleware=[doubling])
    app.endpoint("/x", name="x")(same_of(int))
    app.endpoint("/y", name="y")(same_of(int))
    async with serving(app) as (client, spy):
        for n in range(50):
            assert (await post(client, b"%d" % n)).json() == 2 * n
        assert {*spy.decoded} == {None}  # nothing is decoded whose body would be asked for


async def test_middleware_that_only_reads_the_body_gets_it():
    bodies = []

    def reading(app):
        async def read(scope, receive, send):
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            if b"x-read" in dict(scope["headers"]):
                message = await receive()
                bodies.append(message["body"])

                async def again():
                    return message

                await app(scope, again, send)
            else:
                await app(scope, receive, send)

        return read

    app = shoal.App(middleware=[reading])
    app.endpoint("/x", name="x")(same_of(int))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"7")
        assert (await post(client, b"8", **{"x-read": "1"})).json() == 8
        assert spy.decoded[-1] == 8
    assert bodies == [b"8"]


async def test_an_item_decoded_for_an_earlier_backend_is_decoded_again():
    app = shoal.App()
    app.endpoint("/x", name="x")(same_of(str | int))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b'"7"')
        await app.controller.create_backend("other", same_of(int))
        await app.controller.set_traffic("x", {"other": 1.0})
        assert (await post(client, b'"8"')).json() == 8
        assert spy.decoded[-1] == "8"  # by the decoder of the earlier backend
        assert (await post(client, b'"many"')).status_code == 422
        with anyio.fail_after(15):
            while spy.decoded[-1] != 9:  # the decoder of this backend has taken its place
                assert (await post(client, b'"9"')).json() == 9
                await anyio.sleep(0.01)


async def test_a_backend_with_its_own_decode_gets_the_body():
    async def decode(request):
        return int(await request.body()) + 100

    app = shoal.App()
    app.endpoint("/x", name="x")(same_of(int))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"7")
        await app.controller.create_backend("other", same_of(int), config={"decode": decode})
        await app.controller.set_traffic("x", {"other": 1.0})
        assert (await post(client, b"8")).json() == 108
        assert (await post(client, b"8")).json() == 108
        assert spy.decoded[-2:] == [8, None]  # no item is made in vain


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


async def test_a_result_that_is_an_array_is_the_same_as_before():
    app = shoal.App()
    names = list(ARRAYS)

    @app.endpoint("/{n:int}", name="x")
    async def x(items: list[int]) -> list[Any]:
        return [ARRAYS[names[item]] for item in items]

    async with serving(app) as (client, spy):
        for n, name in enumerate(names):
            before = await post(client, b"%d" % n, f"/{n}")
            after = await decoding(client, spy, b"%d" % n, f"/{n}")
            for answer in (before, after):
                answer.headers.pop("x-request-id")
                answer.headers.pop("date", None)
            assert (after.status_code, after.headers) == (before.status_code, before.headers), name
            if before.status_code == 200:
                assert after.content == before.content


async def test_an_array_that_is_changed_after_it_was_sent_is_received_as_it_was():
    app, array = shoal.App(), np.zeros(1000)

    @app.endpoint("/x", name="x")
    async def x(items: list[int]) -> list[Any]:
        array[:] = 1
        return [array for _ in items]

    async def changing(scope, receive, send):
        await app(scope, receive, send)
        array[:] = 2

    async with serving(changing) as (client, spy):
        answer = await decoding(client, spy, b"1")
    assert set(answer.json()) == {1.0}


async def test_a_worker_is_taught_any_number_of_paths(monkeypatch):
    monkeypatch.setattr("shoal.front_ends.remote_call.MOST_TAUGHT", 3)
    app = shoal.App()
    app.endpoint("/{name}", name="x")(same_of(int))
    async with serving(app) as (client, spy):
        for n in range(6):
            assert (await decoding(client, spy, b"1", f"/{n}")).json() == 1
        spy.decoded.clear()
        for _ in range(2):  # a client can't fill the memory with long ones
            assert (await post(client, b"1", f"/{'a' * 300}")).json() == 1
        assert spy.decoded == [None, None]


async def test_what_may_cost_more_than_its_size_is_decoded_by_the_server():
    app = shoal.App()
    app.endpoint("/x", name="x")(same_of(list[list[Any]]))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"[]")
        large = gzip.compress(b"[" + b" " * 100_000 + b"]")
        assert (await post(client, large, **{"content-encoding": "gzip"})).json() == []
        assert spy.decoded[-1] is None
        assert (await post(client, b"[" + b"[]," * 9000 + b"[]]")).json() == [[]] * 9001
        assert spy.decoded[-1] in (None, [[]] * 9001)


async def test_another_method_of_the_code_is_not_decoded():
    class Code:
        async def __call__(self, items: list[int]) -> list[int]:
            return items

        async def upper(self, texts: list[str]) -> list[str]:
            return [text.upper() for text in texts]

    app = shoal.App()
    app.endpoint("/x", name="x")(Code)
    other = {"x-serve-call-method": "upper"}
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"1")
        for _ in range(2):
            assert (await post(client, b'"a"', **other)).json() == "A"
            assert (await post(client, b"2")).json() == 2
        assert spy.decoded[-4:] == [None, 2, None, 2]


async def test_middleware_that_changes_the_media_type_is_obeyed():
    def as_text(app):
        async def changed(scope, receive, send):
            if scope["type"] == "http" and b"x-text" in dict(scope["headers"]):
                headers = [one for one in scope["headers"] if one[0] != b"content-type"]
                scope = {**scope, "headers": [*headers, (b"content-type", b"text/plain")]}
            await app(scope, receive, send)

        return changed

    app = shoal.App(middleware=[as_text])
    app.endpoint("/x", name="x")(same_of(int))
    async with serving(app) as (client, spy):
        await decoding(client, spy, b"1")
        assert (await post(client, b"1", **{"x-text": "1"})).status_code == 415


async def test_arrays_are_answered_with_all_that_a_response_has():
    app = shoal.App(server_timing="always")

    @app.endpoint("/x", name="x", methods=("POST",))
    async def x(items: list[int]) -> list[Any]:
        return [np.zeros(500) for _ in items]

    async with serving(app) as (client, spy):
        answer = await decoding(client, spy, b"1")
        assert "server-timing" in answer.headers
        npy = await post(client, b"1", accept="application/x-npy")
        assert npy.headers["content-type"] == "application/x-npy"
        own_id = await post(client, b"1", **{"x-request-id": "mine"})
        assert own_id.headers["x-request-id"] == "mine"


def positive(x: int) -> int:
    return abs(x)


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
