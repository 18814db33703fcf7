"""HTTP/2 clients as hostile ones are: h2's client without its checks, and frames made by hand."""

import random
import struct

import h2.config
import h2.connection
import h2.exceptions
import hpack
from hostile_server import CANARY

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4
PATHS = [
    *(b"/sum", b"/sum", b"/sum", b"/steps", b"/raw/state", b"/raw/wait?fuzz", b"/raw/flood"),
    *(b"/nothing", b"/-/healthz"),
]
ODD_FIELDS = [
    (b":path", b"/\xff"),
    (b":path", b""),
    (b":path", b"/sum"),
    (b":method", b"G\xffT"),
    (b":unknown", b"x"),
    (b":protocol", b"websocket"),
    (b":status", b"200"),
    (b":authority", b"other.test"),
    (b"Upper", b"case"),
    (b"connection", b"keep-alive"),
    (b"transfer-encoding", b"chunked"),
    (b"te", b"gzip"),
    (b"host", b"other.test"),
    (b"content-length", b"7"),
    (b"content-length", b"-1"),
    (b"name\r\nx: y", b"z"),
    (b"value", b"a\r\nb: c"),
    (b"null", b"a\x00b"),
    (b"", b"no name"),
    (b"big", b"x" * 10_000),
]


def frame(kind: int, flags: int, stream: int, payload: bytes, declared: int | None = None) -> bytes:
    """A frame, which may say that it has another length."""
    length = len(payload) if declared is None else declared
    return struct.pack(">I", length)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def session(rng: random.Random) -> list[bytes]:
    """What one client sends, in parts: the preface, and then frames."""
    return _by_library(rng) if rng.random() < 0.5 else _by_hand(rng)


def fields(rng: random.Random, method: bytes = b"POST") -> list[tuple[bytes, bytes]]:
    """The header fields of a request, which may be odd."""
    found = [
        (b":method", method),
        (b":path", rng.choice(PATHS)),
        (b":scheme", b"http"),
        (b":authority", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer " + CANARY.encode()),
    ]
    if rng.random() < 0.3:
        if rng.random() < 0.5:
            del found[rng.randrange(len(found))]
        found[rng.randrange(len(found) + 1) :] += rng.sample(ODD_FIELDS, rng.randrange(1, 3))
    return found


def _by_library(rng: random.Random) -> list[bytes]:
    """What h2's client sends when its checks are off."""
    client = h2.connection.H2Connection(
        h2.config.H2Configuration(
            client_side=True,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            header_encoding=None,
        )
    )
    client.initiate_connection()
    if rng.random() < 0.2:
        client.update_settings({4: rng.choice((0, 1, 100, 2**31 - 1))})
    parts = [client.data_to_send()]
    streams: list[int] = []
    for _ in range(rng.randrange(1, 8)):
        try:
            _one_step(rng, client, streams)
        except h2.exceptions.ProtocolError:
            break  # even without checks there are things that it does not send
        parts.append(client.data_to_send())
    return parts


def _one_step(rng: random.Random, client: h2.connection.H2Connection, streams: list[int]) -> None:
    match rng.choice("hhhhddrwpgs"):
        case "h":
            stream = client.get_next_available_stream_id()
            method = rng.choice((b"GET", b"POST", b"POST", b"CONNECT", b"HEAD"))
            client.send_headers(stream, fields(rng, method), end_stream=rng.random() < 0.4)
            streams.append(stream)
        case "d" if streams:
            body = f'"{CANARY}-{rng.randrange(1000)}"'.encode()
            client.send_data(rng.choice(streams), body, end_stream=rng.random() < 0.7)
        case "r" if streams:
            client.reset_stream(rng.choice(streams), rng.randrange(14))
        case "w":
            client.increment_flow_control_window(rng.choice((1, 2**16, 2**30)))
        case "p":
            client.ping(rng.randbytes(8))
        case "g":
            client.close_connection(rng.randrange(14), CANARY.encode())
        case "s":
            client.update_settings({rng.randrange(1, 7): rng.choice((0, 1))})
        case _:
            pass


def _by_hand(rng: random.Random) -> list[bytes]:
    """Frames that no library makes."""
    encoder = hpack.Encoder()
    parts = [PREFACE + frame(SETTINGS, 0, 0, b"")]
    if rng.random() < 0.1:
        parts = [rng.choice((PREFACE, PREFACE[:-3], PREFACE + frame(PING, 0, 0, bytes(8))))]
    for number in range(rng.randrange(1, 8)):
        stream = rng.choice((2 * number + 1, 2 * number + 1, 2 * number + 1, 1, 2, 0, 2**31 - 1))
        parts.append(_odd_frame(rng, encoder, stream))
    return parts


def _odd_frame(rng: random.Random, encoder: hpack.Encoder, stream: int) -> bytes:
    block = encoder.encode(fields(rng))
    body = f'"{CANARY}"'.encode()
    opened = frame(HEADERS, END_HEADERS, stream, block)
    whole = frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
    makers = [
        lambda: opened + frame(DATA, END_STREAM, stream, body),
        lambda: opened + frame(DATA, 0, stream, body),
        lambda: opened + frame(RST, 0, stream, struct.pack(">I", rng.randrange(20))),
        lambda: opened + opened,
        lambda: whole + frame(DATA, 0, stream, body),
        lambda: frame(HEADERS, 0, stream, block) + frame(CONTINUATION, END_HEADERS, stream, b""),
        lambda: frame(HEADERS, 0, stream, block) + frame(CONTINUATION, 0, stream, b"") * 30,
        lambda: frame(HEADERS, 0, stream, block) + frame(PING, 0, 0, bytes(8)),
        lambda: frame(HEADERS, END_HEADERS, stream, rng.randbytes(rng.randrange(60))),
        lambda: frame(HEADERS, END_HEADERS | 0x8, stream, b"\xff" + block),
        lambda: frame(HEADERS, END_HEADERS | 0x20, stream, struct.pack(">IB", stream, 5) + block),
        lambda: frame(DATA, 0, stream, body),
        lambda: frame(DATA, 0x8, stream, b"\xff" + body),
        lambda: frame(PRIORITY, 0, stream, struct.pack(">IB", rng.randrange(2**31), 5)) * 40,
        lambda: frame(PRIORITY, 0, stream, struct.pack(">IB", stream, 5)),
        lambda: frame(RST, 0, stream, b"\0\0\0\0"),
        lambda: frame(SETTINGS, 0, 0, struct.pack(">HI", rng.randrange(9), rng.randrange(2**32))),
        lambda: frame(SETTINGS, 0, 0, b"\0"),
        lambda: frame(SETTINGS, 1, 0, b"") * 5,
        lambda: frame(PUSH, END_HEADERS, stream, struct.pack(">I", 2) + block),
        lambda: frame(PING, 0, 0, bytes(rng.choice((8, 8, 7)))) * 20,
        lambda: frame(GOAWAY, 0, 0, struct.pack(">II", rng.randrange(10), rng.randrange(20))),
        lambda: frame(WINDOW, 0, rng.choice((0, stream)), struct.pack(">I", 0)),
        lambda: frame(WINDOW, 0, rng.choice((0, stream)), struct.pack(">I", 2**31 - 1)) * 2,
        lambda: frame(CONTINUATION, END_HEADERS, stream, block),
        lambda: frame(rng.randrange(10, 256), rng.randrange(256), stream, rng.randbytes(20)),
        lambda: frame(rng.randrange(10), rng.randrange(256), stream, rng.randbytes(20)),
        lambda: frame(DATA, 0, stream, body, declared=2**24 - 1),
        lambda: frame(DATA, 0, stream, body, declared=1000),
    ]
    return rng.choice(makers)()
