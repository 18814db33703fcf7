"""Bodies in other forms than JSON, and answers in the forms that ``Accept`` chooses."""

import gzip
import io
import json
import tracemalloc
import zlib

import numpy as np
import ormsgpack
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
MSGPACK = [("content-type", "application/msgpack")]
FORM = [("content-type", "multipart/form-data; boundary=b")]
MIB = 2**20


class Comment(BaseModel):
    author: str
    score: float = 0.5


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App()

    @app.endpoint("/array")
    def doubled(items: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        return [2 * item for item in items]

    @app.endpoint("/echo")
    def echo(items: list) -> list:
        return items

    @app.endpoint("/raw")
    def raw(items: list[bytes]) -> list[bytes]:
        return [item[::-1] for item in items]

    @app.endpoint("/response")
    def response(items: list[int]) -> list[Response]:
        return [Response(b"x", media_type="text/css") for _ in items]

    @app.endpoint("/comment")
    def comment(items: list[Comment]) -> list[Comment]:
        return items

    @app.endpoint("/length")
    def length(items: list[bytes]) -> list[int]:
        return [len(item) for item in items]

    @app.endpoint("/parts")
    def parts(left: list[bytes], right: list[bytes], times: list[int] = 2) -> list:
        return [[(a + b).decode(), n] for a, b, n in zip(left, right, times, strict=True)]

    async def uploaded(request):
        file = (await request.form())["file"]
        return file.filename, await file.read()

    @app.endpoint("/upload", decode=uploaded)
    def upload(names: list[str], files: list[bytes]) -> list:
        return [[name, len(file)] for name, file in zip(names, files, strict=True)]

    @app.endpoint("/form")
    async def read_form(items: list[Request]) -> list[list]:
        return [list(await one.form()) for one in items]

    @app.get("/value")
    def value() -> dict[str, int]:
        return {"a": 1}

    @app.get("/bytes")
    def some_bytes() -> bytes:
        return b"abc"

    @app.get("/steps")
    async def steps():
        yield 1
        yield 2

    @app.endpoint("/broken")
    def broken(items: list[int]) -> list:
        return [object() for _ in items]

    async with app.lifespan():
        yield app


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("path", "body", "sent", "media_type"),
    [
        ("/raw", PNG, PNG[::-1], "application/octet-stream"),
        ("/response", b"1", b"x", "text/css; charset=utf-8"),
    ],
)
async def test_bytes_are_octets_and_a_response_has_its_type(app, path, body, sent, media_type):
    answer = await ask(app, path, body=body, headers=[("content-type", "application/json")])
    assert (answer.body, answer.headers["content-type"]) == (sent, media_type)
    assert (path == "/response") != (answer.headers.get("x-content-type-options") == "nosniff")


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZip", lambda body: gzip.compress(body[:3]) + gzip.compress(body[3:])),
        ("deflate", zlib.compress),
        ("identity", bytes),
    ],
)
@pytest.mark.parametrize("path", ["/echo", "/array", "/raw"])
async def test_a_compressed_body_is_decompressed(app, coding, compress, path):
    headers = [("content-encoding", coding), ("content-type", "application/json")]
    answer = await ask(app, path, body=compress(b"[1,2]"), headers=headers)
    assert answer.status == 200
    assert answer.body == {"/echo": b"[1,2]", "/array": b"[2.0,4.0]", "/raw": b"]2,1["}[path]


@pytest.mark.one_loop
@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress", "x\x7fy"])
async def test_an_unknown_coding_is_refused_with_those_that_are_known(app, coding):
    for path in ("/echo", "/raw", "/array"):
        headers = [("content-encoding", coding), ("content-type", "application/json")]
        answer = await ask(app, path, body=b"1", headers=headers)
        assert answer.status == 415
        assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", b"1"),
        ("gzip", gzip.compress(b"1")[:-1]),
        ("gzip", gzip.compress(b"1") + b"more"),
        ("gzip", gzip.compress(b"") * 1025),
        ("deflate", b"\x78"),
    ],
    ids=range(5),
)
async def test_a_body_that_is_not_in_its_coding_is_refused(app, coding, body):
    headers = [("content-encoding", coding)]
    answer = await ask(app, "/length", body=body, headers=headers)
    assert (answer.status, answer.json()["type"][-22:]) == (400, "invalid-content-coding")


async def measured(app, path, **request):
    tracemalloc.start()
    try:
        answer = await ask(app, path, **request)
        return answer, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_a_bomb_is_refused_before_it_is_large(app, coding, compress):
    body, headers = compress(bytes(64 * MIB)), [("content-encoding", coding)]
    answer, peak = await measured(app, "/length", body=body, headers=headers)
    assert (answer.status, answer.json()["type"][-14:]) == (413, "body-too-large")
    assert peak < 24 * MIB


@pytest.mark.one_loop
async def test_what_becomes_a_hundred_times_larger_is_refused(app):
    headers = [("content-encoding", "gzip")]
    answer = await ask(app, "/length", body=gzip.compress(bytes(4 * MIB)), headers=headers)
    assert (answer.status, answer.json()["type"]) == (413, "urn:shoal:problem:body-too-large")
    answer = await ask(app, "/length", body=gzip.compress(bytes(MIB)), headers=headers)
    assert answer.json() == MIB


@pytest.mark.one_loop
async def test_a_get_may_name_a_coding(app):
    answer = await ask(app, "/length", method="GET", headers=[("content-encoding", "gzip")])
    assert answer.json() == 0


def msgpack_bodies():
    yield b"", 400
    yield b"\xc1", 400
    yield b"\x01\x02", 400  # something after the end
    yield b"\xa5abc", 400
    yield b"\xd9\xff", 400
    yield b"\xa1\xff", 400  # not UTF-8
    yield b"\xd4\x01\x02", 400  # an extension type
    yield b"\x81\x01\x02", 400  # a key that is not text
    yield b"\xdd\xff\xff\xff\xff", 413
    yield b"\xdf\xff\xff\xff\xff", 413
    yield b"\xdd\x00\x02\x00\x00" * 3, 413
    yield b"\xdd\x00\x03\xff\xff" + b"\x80" * 0x3FFFF, 413
    yield b"\xdd\x00\x04\x00\x10" + b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00" * 0x40010, 413
    yield b"\x91" * 300 + b"\xc0", 400
    yield b"\x91" * 200 + b"\xc0", 200
    yield b"\xdc\x10\x00" + b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00" * 4096, 200
    yield b"\xdc\x10\x00" + b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00" * 4095, 400


@pytest.mark.one_loop
@pytest.mark.parametrize(("body", "status"), [*msgpack_bodies()], ids=range(17))
async def test_msgpack_is_bounded_before_it_is_read(app, body, status):
    answer = await ask(app, "/echo", body=body, headers=MSGPACK)
    assert answer.status == status
    assert status != 413 or "body-too-complex" in answer.json()["type"]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "name", ["application/msgpack", "application/x-msgpack", "Application/vnd.msgpack; a=b"]
)
async def test_msgpack_is_checked_by_the_same_type(app, name):
    headers = [("content-type", name)]
    body = ormsgpack.packb({"author": "a"})
    answer = await ask(app, "/comment", body=body, headers=headers)
    assert answer.json() == {"author": "a", "score": 0.5}
    for wrong in ({"score": 1}, {"author": "a", "score": float("nan")}, [1]):
        answer = await ask(app, "/comment", body=ormsgpack.packb(wrong), headers=headers)
        assert (answer.status, answer.json()["type"][-12:]) == (422, "invalid-item")
        assert answer.json()["errors"]
    body = ormsgpack.packb([[1, 2.5]])
    assert (await ask(app, "/array", body=body, headers=headers)).json() == [[2.0, 5.0]]
    body = ormsgpack.packb({"left": b"a", "right": b"b"})
    assert (await ask(app, "/parts", body=body, headers=headers)).json() == ["ab", 2]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/x-npy", "application/x-npy"),
        ("application/json;q=0.5, application/x-npy", "application/x-npy"),
        ("application/json, application/x-npy", "application/x-npy"),
        ("*/*, application/x-npy;q=0.9", "application/x-npy"),
        ("application/json, application/x-npy;q=0.9", "application/json"),
        ("application/x-npy;q=0", "application/json"),
        ("application/x-npy;q=nan", "application/json"),
        ("application/x-npy;q=5", "application/json"),
        ("application/x-npy;q=x", "application/json"),
        ("*/*", "application/json"),
        ("text/html", "application/json"),
        ("application/msgpack", "application/msgpack"),
        ("application/msgpack;q=0.1, application/x-npy;q=0.01", "application/x-npy"),
    ],
)
async def test_accept_says_how_an_array_is_answered(app, accept, kind):
    answer = await ask(app, "/array", [1, 2], headers=[("accept", accept)])
    assert (answer.status, answer.headers["content-type"]) == (200, kind)
    value = {
        "application/x-npy": lambda body: np.load(io.BytesIO(body)).tolist(),
        "application/json": json.loads,
        "application/msgpack": ormsgpack.unpackb,
    }[kind](answer.body)
    assert value == [2.0, 4.0]


@pytest.mark.parametrize(
    ("path", "accept", "media_type", "varies"),
    [
        ("/value", None, "application/json", False),
        ("/value", "*/*", "application/json", False),
        ("/value", "application/json", "application/json", False),
        ("/value", "application/json, */*;q=0.1", "application/json", True),
        ("/value", "application/x-npy", "application/json", True),
        ("/value", "application/msgpack", "application/msgpack", True),
        ("/array", None, "application/json", False),
        ("/array", "application/x-npy", "application/x-npy", True),
        ("/array", "text/html", "application/json", True),
        ("/bytes", "application/msgpack", "application/octet-stream", False),
        ("/steps", None, "text/event-stream; charset=utf-8", True),
        ("/steps", "application/x-ndjson", "application/x-ndjson; charset=utf-8", True),
        ("/steps", "application/json", "application/json", True),
        ("/steps", "text/html", "application/problem+json", True),
    ],
)
async def test_an_answer_varies_if_its_form_was_chosen(app, path, accept, media_type, varies):
    headers = [] if accept is None else [("accept", accept)]
    asked = {"item": [1, 2]} if path == "/array" else {"method": "GET"}
    answer = await ask(app, path, **asked, headers=headers)
    assert answer.headers["content-type"] == media_type
    assert answer.headers.get("vary") == ("accept" if varies else None)


@pytest.mark.one_loop
async def test_what_can_not_be_written_as_asked_is_json(app):
    for accept in ("application/x-npy", "application/msgpack"):
        answer = await ask(app, "/echo", 2**70, headers=[("accept", accept)])
        assert (answer.status, answer.json()) == (200, 2**70)
        assert (await ask(app, "/broken", 1, headers=[("accept", accept)])).status == 500


def form(*parts, boundary=b"b", end=b"--\r\n"):
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, one) for one in parts) + b"--" + boundary + end


def part(name=b"file", data=b"abc", more=b""):
    return b'Content-Disposition: form-data; name="%b"%b\r\n\r\n%b' % (name, more, data)


# Earlier versions of Starlette leave it open where a form is malformed.
leaves_its_stream = pytest.mark.filterwarnings("ignore:.*Request.stream")


def forms():
    yield form(part(more=b'; filename="../../x"')), 200
    yield form(part(more=b'; filename="a"\r\nX-More: y')), 200
    yield form(part(data=b"\r\n--a\r\n--", more=b'; filename="a"')), 200
    yield form(part(b"\xff"), part(more=b'; filename="\xff"')), 200
    yield form(part(), boundary=b"other"), 400
    yield form(b"X: y\r\n\r\nabc"), 400
    yield form(b"Content-Disposition: form-data\r\n\r\nabc"), 400
    yield form(part(more=b"\r\nX: \x00y: z\r")), 400
    yield form(*[part(b"a%d" % n) for n in range(1001)]), 400
    yield form(part(data=b"a" * (MIB + 1))), 400  # a field, and not a file


@leaves_its_stream
@pytest.mark.one_loop
@pytest.mark.parametrize(("body", "status"), [*forms()], ids=range(10))
async def test_forms_are_bounded_and_well_formed(app, body, status, caplog):
    answer = await ask(app, "/upload", body=body, headers=FORM)
    assert answer.status == status
    assert status == 200 or answer.json()["type"] == "urn:shoal:problem:invalid-form"
    assert caplog.records == []  # else a client could fill the log


@leaves_its_stream
@pytest.mark.one_loop
@pytest.mark.parametrize("boundary", ["", "; boundary=", '; boundary=""', "; boundary=" + "b" * 71])
async def test_a_form_needs_a_boundary(app, boundary):
    headers = [("content-type", f"multipart/form-data{boundary}")]
    answer = await ask(app, "/upload", body=form(part()), headers=headers)
    assert answer.status == 400


MULTIPART = "multipart/form-data; boundary=b"
COSTLY = {
    "parameters of a part": (MULTIPART, form(*[part(more=b";" * 3000)] * 256)),
    "parameters in quotes": (MULTIPART, form(part(b";" * 40))),
    "headers of all parts": (MULTIPART, form(*[part(more=b"; x=" + b"y" * 3000)] * 30)),
    "headers without an end": (MULTIPART, form(b"a: " + b"b" * 2**17)),
    "parameters of the type": (MULTIPART + ";" * 3000, form(part())),
    "fields": ("application/x-www-form-urlencoded", b"a&" * 5000),
}


@pytest.mark.one_loop
@pytest.mark.parametrize("path", ["/upload", "/form"])
@pytest.mark.parametrize(("kind", "body"), COSTLY.values(), ids=COSTLY)
async def test_a_form_that_would_cost_too_much_is_refused_unparsed(app, kind, body, path):
    answer = await ask(app, path, body=body, headers=[("content-type", kind)])
    assert (answer.status, answer.json()["type"]) == (413, "urn:shoal:problem:body-too-complex")


async def test_a_form_with_large_files_is_read_by_the_code(app):
    data = b"\r\n--\r\n\r\n;" * 10_000
    body = form(part(data=data), part(b"more"))
    assert (await ask(app, "/form", body=body, headers=FORM)).json() == ["file", "more"]
    headers = [("content-type", "application/x-www-form-urlencoded")]
    assert (await ask(app, "/form", body=b"a=1&b=2", headers=headers)).json() == ["a", "b"]


@pytest.mark.one_loop
@pytest.mark.parametrize("text", ["x", b"x"])
async def test_an_array_of_texts_is_refused_before_each_is_made_as_long_as_the_longest(app, text):
    texts = [MIB * text, *[text] * 1000]  # numpy would take 1 or 4 GiB for these
    answer, peak = await measured(app, "/array", body=ormsgpack.packb([texts]), headers=MSGPACK)
    assert answer.status == 422
    assert "numbers" in answer.json()["detail"]
    assert peak < 20 * MIB
