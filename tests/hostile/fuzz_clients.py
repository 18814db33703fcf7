"""Hostile connections, each made from a seed and its number, so that any can be made again."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import fuzz_http2
import fuzz_websocket
from hostile_server import CANARY
from http1_corpus import HEADERS, Corpus

PROTOCOLS = ("http1", "http2", "websocket")
# How a client leaves: it resets the connection, closes it, closes it after it has ended its own
# side and read what there is, or leaves it open for a while.
RESET, CLOSE, HALF_CLOSE, LINGER = "reset", "close", "half close", "linger"
WAYS = (RESET, CLOSE, CLOSE, HALF_CLOSE, LINGER)
# Where a client waits for an answer before it goes on.
AWAIT = None
SECRET = CANARY.encode()
# What requests of HTTP/1.1 are made of, beside what each can be made of.
HTTP1_TARGETS = [
    *(b"/sum", b"/sum", b"/sum", b"/steps", b"/raw/state", b"/raw/sum", b"/raw/wait?fuzz"),
    *(b"/raw/flood", b"/nothing", b"/-/healthz", b"/-/metrics", b"*", b"http://localhost/sum"),
]
HTTP1_HEADERS = [
    *HEADERS,
    *(b"Content-Type: application/json", b"Accept: text/event-stream", b"Expect: 100-continue"),
    *(b"X-Serve-Call-Method: __init__", b"X-Serve-Shard-Key: " + b"k" * 1000, b"X-Priority: 1"),
    *(b"Authorization: Bearer " + SECRET, b"Cookie: session=" + SECRET),
]
HTTP1_CONTENTS = [
    *(b"", SECRET * 300, b"[" * 900, b"\xff\xfe\0" * 50, json.dumps(CANARY).encode()),
    json.dumps({"name": CANARY, "count": 3}).encode(),
]


@dataclass(frozen=True)
class HostileConnection:
    protocol: str
    steps: tuple[bytes | None, ...]
    way: str


def hostile_connection(
    seed: int, number: int, protocols: Sequence[str] = PROTOCOLS
) -> HostileConnection:
    """Makes the connection with this number; equal arguments make equal connections."""
    rng = random.Random(f"{seed}/{number}")
    protocol = rng.choice(protocols)
    steps: list[bytes | None]
    match protocol:
        case "http1":
            corpus = Corpus(
                rng,
                host=b"Host: 127.0.0.1",
                targets=HTTP1_TARGETS,
                headers=HTTP1_HEADERS,
                contents=HTTP1_CONTENTS,
            )
            steps = _split(rng, next(corpus.sent(1)))
        case "http2":
            first, *others = fuzz_http2.session(rng)
            if rng.random() < 0.5:
                others = [_damaged(rng, part) for part in others]
            steps = [first, *others] if rng.random() < 0.3 else [first + b"".join(others)]
            if rng.random() < 0.2:
                steps.insert(1, AWAIT)
        case _:
            asking = fuzz_websocket.upgrade(rng)
            behind = fuzz_websocket.frames(rng)
            if rng.random() < 0.3:
                behind = _damaged(rng, behind)
            steps = [asking, AWAIT, behind] if rng.random() < 0.8 else [asking + behind]
    if protocol != "http2" and rng.random() < 0.3:
        steps = [_damaged(rng, step) if step else step for step in steps]
    if rng.random() < 0.3:
        steps.append(AWAIT)
    return HostileConnection(protocol, tuple(steps), rng.choice(WAYS))


def _split(rng: random.Random, data: bytes) -> list[bytes | None]:
    if rng.random() < 0.7 or len(data) < 2:
        return [data]
    places = sorted(rng.randrange(1, len(data)) for _ in range(rng.randrange(1, 4)))
    return [data[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Changes, removes, repeats or adds some bytes."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0 | 1 if at < len(found):
                found[at] = rng.randrange(256)
            case 2 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 3:
                del found[at : at + rng.randrange(1, 20)]
            case 4:
                found[at:at] = found[at : at + rng.randrange(1, 50)]
            case _:
                found[at:at] = rng.randbytes(rng.randrange(1, 8))
    return bytes(found)
