"""Bodies that nobody meant: each codec gets rubbish, and mutations of what it reads.

Whatever a client sends, its answer is no 5xx, in time, and nothing of it is kept. A few hundred
bodies of each form here, 20,000 in the soak (``SHOAL_SOAK_BODIES``).
"""

import gc
import gzip
import json
import os
import tracemalloc
import zlib
from collections import deque
from functools import cache, partial
from typing import Annotated, Any

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np
import ormsgpack
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import shoal
from shoal.http import Cookie, Header, Path, Query, Upload
from shoal.http.requests.compressed import CompressedStream
from shoal.http.requests.stream_forms import JSON_LINES
from shoal.testing.asgi import ask

SOAK_BODIES = int(os.environ.get("SHOAL_SOAK_BODIES", "20000"))
common = settings(
    deadline=2000,  # milliseconds: none may hang
    database=None,
    suppress_health_check=list(HealthCheck),
)
short = settings(common, max_examples=80, derandomize=True)
long = settings(common, max_examples=SOAK_BODIES, print_blob=True)

MIB = 2**20


class Comment(BaseModel):
    author: str
    score: float = 0.5
    replies: list["Comment"] = []


class Photo(BaseModel):
    image: Upload
    pages: list[bytes] = []
    title: str = ""
    comment: Comment | None = None


class Marked(BaseModel):
    text: Any = None
    user: Annotated[int, Path()]
    limit: Annotated[int, Query()] = 1
    tags: Annotated[list[str], Query()] = []
    tenant: Annotated[str | None, Header()] = None
    names: Annotated[list[str], Header("tenant")] = []
    session: Annotated[str | None, Cookie()] = None


@cache
def fuzzed_app() -> shoal.App:
    app = shoal.App(compress_from_bytes=1, max_body_bytes=MIB)

    @app.endpoint("/any")
    async def anything(items: list[Any]) -> list[Any]:
        return items

    @app.endpoint("/comment")
    async def comment(items: list[Comment]) -> list[Comment]:
        return items

    @app.endpoint("/photo")
    async def photo(items: list[Photo]) -> list[int]:
        return [len(item.image.data) for item in items]

    @app.endpoint("/raw")
    async def raw(items: list[bytes]) -> list[bytes]:
        return items

    @app.endpoint("/array")
    async def array(items: list[np.ndarray]) -> list[Any]:
        return items

    @app.endpoint("/users/{user}", methods=("GET", "POST"))
    async def marked(items: list[Marked]) -> list[Marked]:
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
    """A body with a few bytes replaced, taken out, or said twice."""
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


COMPRESS = {
    "gzip": partial(gzip.compress, mtime=0),
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}
compressed = st.tuples(
    st.sampled_from(["gzip", "deflate", "zstd"]), st.binary(max_size=300) | st.just(bytes(3 * MIB))
).map(lambda pair: (pair[0], COMPRESS[pair[0]](pair[1])))
header_text = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20).map(
    lambda text: text.encode("latin-1").decode("latin-1")
)


async def check(body: bytes, path: str, headers: list[tuple[str, str]], method="POST") -> None:
    app = fuzzed_app()
    answer = await ask(app, path, body=body, headers=headers, method=method)
    assert answer.status < 500, (answer.status, answer.body)
    if answer.status >= 400:
        assert "problem+json" in answer.headers["content-type"]


def msgpack_case(body, path):
    # What is in MessagePack goes back in it: bytes are nothing that JSON has.
    headers = [("content-type", "application/msgpack"), ("accept", "application/msgpack")]
    return partial(check, body, path, headers)


def form_case(body, boundary):
    headers = [("content-type", f"multipart/form-data; boundary={boundary}")]
    return partial(check, body, "/photo", headers)


def coding_case(coded, path, other):
    coding, body = coded
    named = [("content-encoding", other or coding), ("content-type", "application/json")]
    return partial(check, body, path, [*named, ("accept-encoding", "zstd, gzip")])


def marks_case(path, query, headers, body):
    named = [("content-type", "application/json"), *headers]
    return partial(check, body, f"/users/{path}?{query}", named, "POST" if body else "GET")


def accept_case(accept, accept_encoding):
    headers = [("content-type", "application/json"), ("accept", accept)]
    return partial(check, b"[1]", "/array", [*headers, ("accept-encoding", accept_encoding)])


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
    "msgpack": st.builds(
        msgpack_case,
        mutated(packs) | st.binary(max_size=100) | liars,
        st.sampled_from(["/any", "/comment", "/array", "/photo"]),
    ),
    "form": st.builds(form_case, mutated(forms()), st.just("b") | header_text),
    "coding": st.builds(
        coding_case,
        compressed
        | st.tuples(st.sampled_from(list(COMPRESS)), mutated(compressed.map(lambda c: c[1]))),
        st.sampled_from(["/raw", "/any", "/array"]),
        st.just("") | st.sampled_from(list(COMPRESS)) | header_text,
    ),
    "marks": st.builds(
        marks_case,
        st.text(st.characters(exclude_characters="?/"), min_size=1, max_size=20).filter(
            lambda text: text.isprintable()
        ),
        st.text(st.sampled_from("limit=tags&%00ff1+;"), max_size=40),
        st.lists(st.tuples(st.sampled_from(["tenant", "cookie", "x"]), header_text), max_size=4),
        st.just(b"") | plain.map(lambda v: json.dumps(v, default=repr).encode()),
    ),
    "accept": st.builds(accept_case, accepts | header_text, accepts | header_text),
}


def fuzz(kind: str, how: settings) -> int:
    """Sends requests of one kind to an application that stays open.

    Returns:
        How many bytes it keeps when the last 200 are sent again.
    """
    grown = 0
    last = deque(maxlen=200)

    async def main() -> None:
        async with fuzzed_app().lifespan(), anyio.from_thread.BlockingPortal() as portal:

            def send(request) -> None:
                portal.call(request)
                last.append(request)

            def send_all() -> None:
                nonlocal grown
                how(given(CASES[kind])(send))()
                tracemalloc.start()
                kept = []
                for _ in range(2):
                    for request in list(last):
                        portal.call(request)
                    gc.collect()
                    kept.append(tracemalloc.get_traced_memory()[0])
                tracemalloc.stop()
                grown = kept[1] - kept[0]

            await anyio.to_thread.run_sync(send_all)

    anyio.run(main, backend="trio")
    return grown


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("kind", CASES)
def test_a_body_that_nobody_meant_is_no_servers_error(kind):
    assert fuzz(kind, short) < MIB // 16


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", CASES)
def test_a_body_that_nobody_meant_is_no_servers_error_for_long(kind):
    assert fuzz(kind, long) < MIB // 16


def check_stream(values: list[str], coding: bytes) -> None:
    made = CompressedStream(JSON_LINES, coding)
    sent = made.start
    for value in values:
        sent += made.item(value) + made.heartbeat
    sent += made.end()
    decoded = gzip.decompress(sent) if coding == b"gzip" else zstd.decompress(sent)
    expected = [JSON_LINES.item(value) for value in values]
    assert decoded == b"\n" + b"".join(expected) + JSON_LINES.end()


streams = given(st.lists(st.text(max_size=200), max_size=20), st.sampled_from([b"gzip", b"zstd"]))


def test_a_compressed_stream_is_read_as_it_was_written():
    short(streams(check_stream))()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_compressed_stream_is_read_as_it_was_written_for_long():
    long(streams(check_stream))()
