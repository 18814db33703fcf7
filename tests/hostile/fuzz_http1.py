"""HTTP/1.1 requests as hostile clients send them: well-formed ones, and ones that are nearly so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hostile_server import CANARY

if TYPE_CHECKING:
    import random

METHODS = [b"GET", b"POST", b"POST", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"PRI"]
ODD_METHODS = [b"get", b"G ET", b"", b"\xff", b"X" * 40, b"GET\x00", b"M-SEARCH", b"BREW"]
TARGETS = [
    *(b"/sum", b"/sum", b"/sum", b"/steps", b"/raw/state", b"/raw/sum", b"/raw/wait?fuzz"),
    *(b"/raw/flood", b"/nothing", b"/-/healthz", b"/-/metrics", b"*", b"http://localhost/sum"),
]
ODD_TARGETS = [
    *(b"", b"//", b"/%", b"/%00", b"/%ff%fe", b"/\xff", b"sum", b"http://", b"http://[::1/sum"),
    *(b"/" + b"a" * 20_000, b"/sum?" + b"&" * 2000, b"/../../etc", b"localhost:443", b"/sum#x"),
]
VERSIONS = [b"HTTP/1.1"] * 8 + [b"HTTP/1.0"]
ODD_VERSIONS = [b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b"http/1.1", b"HTTP/1.10", b"", b"ICY/1.1"]
HEADERS = [
    b"Content-Type: application/json",
    b"Accept: text/event-stream",
    b"Accept: application/x-ndjson",
    b"Expect: 100-continue",
    b"Connection: keep-alive",
    b"Connection: close",
    b"X-Request-ID: fuzz",
    b"X-Priority: 1",
    b"Accept-Encoding: gzip",
    b"Authorization: Bearer " + CANARY.encode(),
    b"Cookie: session=" + CANARY.encode(),
]
ODD_HEADERS = [
    b"Host: other.test",
    b"Host:",
    b" Folded: value",
    b"NoColon",
    b": no name",
    b"Bad Name: x",
    b"Name : space",
    b"Null: a\x00b",
    b"Bare: a\rb",
    b"Latin: \xe9\xff",
    b"Connection: \x85Upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Upgrade: \xff",
    b"Expect: 200-ok",
    b"X-Serve-Call-Method: __init__",
    b"X-Serve-Shard-Key: " + b"k" * 1000,
    b"Content-Encoding: gzip",
    b"Content-Length: -1",
    b"Content-Length: 1e3",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 0, 0",
    b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: \x0bchunked",
    b"X: " + b"y" * 40_000,
]
ODD_CHUNKS = [
    *(b"zz\r\n", b"-1\r\n", b"5;a=b\r\nhello\r\n", b"5\nhello\n", b"5\r\nhello!\r\n"),
    *(b"FFFFFFFFFFFFFFFFF\r\n", b"0\r\nX: y\r\n" * 3, b"0\r\nBad Name: x\r\n\r\n", b"0x5\r\n"),
]


def requests(rng: random.Random) -> bytes:
    """What one client sends: a request, or some of them, pipelined."""
    return b"".join(request(rng) for _ in range(rng.choice((1, 1, 1, 1, 2, 5))))


def request(rng: random.Random) -> bytes:
    """One request; each part of it may be odd."""
    oddness = rng.choice((0.0, 0.0, 0.1, 0.3))

    def pick(usual: list[bytes], odd: list[bytes]) -> bytes:
        return rng.choice(odd if rng.random() < oddness else usual)

    line = b" ".join(
        [pick(METHODS, ODD_METHODS), pick(TARGETS, ODD_TARGETS), pick(VERSIONS, ODD_VERSIONS)]
    )
    headers = [pick(HEADERS, ODD_HEADERS) for _ in range(rng.randrange(6))]
    if rng.random() > oddness / 2:
        headers.insert(0, b"Host: 127.0.0.1")
    framing, body = _body(rng, oddness)
    headers += framing
    rng.shuffle(headers)
    line_break = b"\n" if rng.random() < oddness / 4 else b"\r\n"
    return line_break.join([line, *headers, b"", b""]) + body


def _body(rng: random.Random, oddness: float) -> tuple[list[bytes], bytes]:
    """The headers that delimit a body, and the body."""
    content = rng.choice(
        [
            b"",
            json.dumps(f"{CANARY}-{rng.randrange(1000)}").encode(),
            json.dumps({"name": CANARY, "count": rng.randrange(5)}).encode(),
            CANARY.encode() * rng.randrange(500),
            b"[" * rng.randrange(1000),
            rng.randbytes(rng.randrange(300)),
        ]
    )
    length = b"Content-Length: %d" % len(content)
    kind = rng.random()
    if kind < 0.4:
        return ([length] if content else []), content
    if kind < 0.8:
        return [b"Transfer-Encoding: chunked"], _chunked(rng, content, oddness)
    if rng.random() > oddness:
        return [], b""
    return rng.choice(
        [
            ([length, b"Transfer-Encoding: chunked"], content),
            ([length, b"Content-Length: %d" % (len(content) + 1)], content),
            ([b"Content-Length: %d" % (len(content) + 1000)], content),
            ([b"Content-Length: %d" % (len(content) // 2)], content),
            ([], content),
        ]
    )


def _chunked(rng: random.Random, content: bytes, oddness: float) -> bytes:
    pieces = []
    at = 0
    while at < len(content):
        size = rng.randrange(1, 200)
        piece = content[at : at + size]
        pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        at += size
    if rng.random() < oddness:
        pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(ODD_CHUNKS))
    if rng.random() > oddness / 2:
        pieces.append(b"0\r\n\r\n")
    return b"".join(pieces)
