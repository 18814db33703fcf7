"""Bodies that nobody meant: each codec gets rubbish, and mutations of what it reads.

Whatever a client sends, its answer is no 5xx, in time, and nothing of it is kept.
"""

import gzip
import io
import json
import struct
import zlib
from functools import partial
from typing import Annotated, Any

import numpy as np
import ormsgpack
import pytest
from fuzzing import Sent, checking, fuzzed, sent_by
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import BaseModel, Field, Json
from starlette.datastructures import UploadFile
from starlette.requests import Request

import shoal

pytestmark = pytest.mark.slow

MIB = 2**20


class Comment(BaseModel):
    author: str
    score: float = 0.5
    replies: list["Comment"] = []


class Photo(BaseModel):
    image: bytes
    pages: list[bytes] = []
    title: str = ""
    comment: Json[Comment] | None = None


class Visit(BaseModel):
    text: Any = None
    user: int
    limit: int = 1
    tags: list[str] = []
    tenant: str | None = None
    session: str | None = None


async def photo_of(request: Request) -> Photo:
    form = await request.form()
    pages = [await one.read() for one in form.getlist("pages") if isinstance(one, UploadFile)]
    image = form.get("image")
    fields = {name: form[name] for name in ("title", "comment") if name in form}
    if isinstance(image, UploadFile):
        fields["image"] = await image.read()
    return Photo.model_validate({**fields, "pages": pages})


async def visit_of(request: Request) -> Visit:
    fields = {**request.query_params, **request.headers, **request.cookies, **request.path_params}
    if await request.body():
        fields["text"] = await request.json()
    fields["tags"] = request.query_params.getlist("tags")
    return Visit.model_validate(fields)


def fuzzed_app() -> shoal.App:
    app = shoal.App(max_body_bytes=MIB)

    @app.endpoint("/any")
    async def anything(items: list[Any]) -> list[Any]:
        return items

    @app.endpoint("/comment")
    async def comment(items: list[Comment]) -> list[Comment]:
        return items

    @app.endpoint("/columns")
    async def columns(text: list[str], number: list[float], more: list[Any] = 0) -> list[Any]:  # type: ignore[assignment]
        return [*zip(text, number, strict=True)]

    @app.endpoint("/count")
    async def count(number: list[Annotated[int, Field(ge=0, le=3)]]):
        for step in range(max(number)):
            yield [step if step < one else shoal.END for one in number]

    @app.endpoint("/numbers")
    async def numbers(items: list[NDArray[np.float32]]) -> list[Any]:
        return items

    @app.endpoint("/photo", decode=photo_of)
    async def photo(items: list[Photo]) -> list[int]:
        return [len(item.image) for item in items]

    @app.endpoint("/raw")
    async def raw(items: list[bytes]) -> list[bytes]:
        return items

    @app.endpoint("/array")
    async def array(items: list[np.ndarray]) -> list[Any]:
        return items

    @app.endpoint("/users/{user}", methods=("GET", "POST"), decode=visit_of)
    async def visit(items: list[Visit]) -> list[Visit]:
        return items

    return app


texts = st.text(max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
comments = st.fixed_dictionaries({"author": texts}, optional={"score": st.floats()})
packs = (plain | comments).map(ormsgpack.packb)
# Headers of MessagePack that declare what is not there.
liars = st.tuples(
    st.sampled_from([0xDC, 0xDD, 0xDE, 0xDF, 0xD9, 0xDB, 0xC4, 0xC6, 0xC7, 0xD8, 0x9F, 0x8F, 0xC1]),
    st.binary(max_size=12),
).map(lambda pair: bytes([pair[0]]) + pair[1])


@st.composite
def mutated(draw, bodies):
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        until = draw(st.integers(at, min(len(body), at + 8)))
        body[at:until] = draw(st.binary(max_size=8) | st.just(bytes(body[at:until]) * 2) | liars)
    return bytes(body)


@st.composite
def forms(draw):
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(["image", "pages", "title", "comment", "x"]) | texts)
        more = draw(
            st.sampled_from(
                ["", '; filename="a"', "; filename*=utf-8''%ff", "\r\nX: y", '; name="z"']
            )
        )
        kind = draw(st.sampled_from(["", "\r\nContent-Type: application/json", "\r\nA"]))
        data = draw(st.binary(max_size=40) | plain.map(repr).map(str.encode))
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"{more}{kind}\r\n\r\n'
        pieces += [head.encode(), data, b"\r\n"]
    return b"".join([*pieces, b"--b--\r\n"])


COMPRESS = {"gzip": partial(gzip.compress, mtime=0), "deflate": zlib.compress}
BOMBS = {name: compress(bytes(3 * MIB)) for name, compress in COMPRESS.items()}
compressed = st.tuples(st.sampled_from(list(COMPRESS)), st.binary(max_size=300)).map(
    lambda pair: (pair[0], COMPRESS[pair[0]](pair[1]))
) | st.sampled_from(list(BOMBS.items()))
header_text = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20).map(
    lambda text: text.encode("latin-1").decode("latin-1")
)


def msgpack_case(body, path):
    # What is in MessagePack goes back in it: bytes are nothing that JSON has.
    headers = (("content-type", "application/msgpack"), ("accept", "application/msgpack"))
    return Sent(path, body, headers)


def form_case(body, boundary):
    return Sent("/photo", body, (("content-type", f"multipart/form-data; boundary={boundary}"),))


def coding_case(coded, path, other):
    coding, body = coded
    named = (("content-encoding", other or coding), ("content-type", "application/json"))
    return Sent(path, body, named)


def request_case(path, query, headers, body):
    named = (("content-type", "application/json"), *headers)
    return Sent(f"/users/{path}?{query}", body, named, "POST" if body else "GET")


def json_case(body, path, kind, more):
    return Sent(path, body, (("content-type", kind), *more))


def npy_case(body, path, accept):
    return Sent(path, body, (("content-type", "application/x-npy"), ("accept", accept)))


def stream_case(method, query, accept, last):
    headers = (("content-type", "application/json"), ("accept", accept))
    if last is not None:
        headers += (("last-event-id", last),)
    if method == "GET":
        return Sent(f"/count?number={query}", b"", headers, method)
    return Sent("/count", str(query).encode(), headers, method)


json_texts = plain.map(lambda value: json.dumps(value, default=repr).encode())
oddities = st.sampled_from(
    [
        *(b"[" * 300, b"[" * 300 + b"]" * 300, b'{"a":' * 250 + b"1" + b"}" * 250),
        *(b"NaN", b"[Infinity]", b"-0", b"1e999", b"9" * 5000, b"1.", b"01", b"[1,]", b'"\\ud800"'),
        *(b"", b" ", b"null", b'"\x00"', b"\xef\xbb\xbf1", "1".encode("utf-16"), b'"\xff"'),
        *(b'{"a":1,"a":2}', b'{"text":"x","number":1,"text":2}', b'"' + b"x" * 300, b"[" * MIB),
        *(b"[" + b"1," * 9999, b"[" + b"0," * 2**18 + b"0]"),
    ]
)
columns_texts = st.fixed_dictionaries(
    {"text": texts, "number": st.floats() | plain}, optional={"more": plain, "x": plain}
).map(lambda value: json.dumps(value, default=repr).encode())
call_headers = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("x-priority", "x-request-timeout", "x-serve-call-method", "x-serve-shard-key"),
                *("x-request-id", "traceparent", "cache-control", "range", "if-none-match"),
            ]
        ),
        header_text | st.sampled_from(["0", "1", "-1", "1e5", "9" * 400, "1.5", "__init__", "a:b"]),
    ),
    max_size=2,
).map(tuple)
dtypes = st.sampled_from(["<f4", ">f8", "|b1", "|u1", "<c16", "<U3", "|S4", "<M8[s]", "|V8", "<f2"])
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def arrays(draw):
    array = np.zeros(draw(shapes), draw(dtypes))
    file = io.BytesIO()
    np.lib.format.write_array(
        file, np.asfortranarray(array) if draw(st.booleans()) else array, allow_pickle=False
    )
    return file.getvalue()


@st.composite
def headed(draw):
    dtype = draw(
        dtypes
        | st.sampled_from(["|O", "O", "x", "<f99", "<f4'*9**9,'", [("a", "<f4")], "|V1000000"])
    )
    shape = draw(shapes | st.sampled_from([(2**62,), (2**31, 2**31), (-1,), (0, 2**63), 3, "x"]))
    header = {"descr": dtype, "fortran_order": draw(st.booleans() | st.none()), "shape": shape}
    text = repr(header) if draw(st.booleans()) else draw(texts | st.just("(" * 5000))
    text = text.encode("utf-8", "replace") + b"\n"
    version = draw(st.sampled_from([1, 2, 3, 9]))
    length = draw(st.just(len(text)) | st.integers(0, 2**16 - 1))
    size = struct.pack("<H" if version == 1 else "<I", length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + draw(st.binary(max_size=40))


accepts = st.lists(
    st.sampled_from(
        ["*/*", "application/x-npy", "application/msgpack", "application/json", "gzip", "zstd", "*"]
    ),
    max_size=3,
).flatmap(
    lambda names: st.lists(
        st.sampled_from(["", ";q=0", ";q=1", ";q=nan", ";q=-1", ";q=1e999", ";q=", ";;"])
        | header_text,
        min_size=len(names),
        max_size=len(names),
    ).map(lambda weights: ", ".join(map("".join, zip(names, weights, strict=True))))
)

CASES = {
    "json": st.builds(
        json_case,
        mutated(json_texts | columns_texts) | oddities | st.binary(max_size=50),
        st.sampled_from(["/any", "/comment", "/columns", "/numbers", "/photo", "/count"]),
        st.sampled_from(
            ["application/json"] * 8 + ["application/json; charset=utf-16", "text/json"]
        ),
        call_headers,
    ),
    "npy": st.builds(
        npy_case,
        mutated(arrays()) | headed() | st.binary(max_size=30),
        st.sampled_from(["/array", "/numbers", "/any", "/raw"]),
        st.sampled_from(["application/x-npy", "*/*"]),
    ),
    "msgpack": st.builds(
        msgpack_case,
        mutated(packs) | st.binary(max_size=100) | liars,
        st.sampled_from(["/any", "/comment", "/array", "/photo", "/columns"]),
    ),
    "form": st.builds(form_case, mutated(forms()), st.just("b") | header_text),
    "coding": st.builds(
        coding_case,
        compressed
        | st.tuples(st.sampled_from(list(COMPRESS)), mutated(compressed.map(lambda c: c[1]))),
        st.sampled_from(["/raw", "/any", "/array"]),
        st.just("") | st.sampled_from(list(COMPRESS)) | header_text,
    ),
    "requests": st.builds(
        request_case,
        st.text(st.characters(exclude_characters="?/"), min_size=1, max_size=20).filter(
            lambda text: text.isprintable()
        ),
        st.text(st.sampled_from("limit=tags&%00ff1+;"), max_size=40),
        st.lists(
            st.tuples(st.sampled_from(["tenant", "cookie", "x"]), header_text), max_size=4
        ).map(tuple),
        st.just(b"") | json_texts,
    ),
    "stream": st.builds(
        stream_case,
        st.sampled_from(["GET", "POST"]),
        st.integers(-1, 4) | st.sampled_from(["x", "[1", "1&number=2", "%ff", "null", "1.0"]),
        accepts | header_text,
        st.none() | header_text | st.sampled_from(["0", "-1", "1", "9" * 99]),
    ),
}


def check_form(sent, answer):
    """An error is a problem, or a text about what is no HTTP."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if answer.status >= 400:
        assert "problem+json" in kind or (sent.directly and answer.body.count(b"\n") == 1)
    elif kind == "application/json":
        json.loads(answer.body)
    elif kind == "application/x-npy":
        np.load(io.BytesIO(answer.body), allow_pickle=False)
    elif kind == "application/msgpack":
        ormsgpack.unpackb(answer.body)
    elif kind == "text/event-stream":
        assert answer.body.endswith(b"event: end\ndata: {}\n\n")


@fuzzed
@pytest.mark.parametrize("kind", CASES)
def test_a_body_that_nobody_meant_is_no_servers_error(fuzz, kind):
    fuzz(fuzzed_app, sent_by(CASES[kind]), checking(check_form))
