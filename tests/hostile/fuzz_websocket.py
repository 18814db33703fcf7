"""WebSocket clients as hostile ones are: the upgrade, and frames that are nearly well-formed.

The frames are made here, since wsproto makes no wrong ones, and draws its masks from the system.
"""

import random
import struct

from hostile_server import CANARY

UPGRADE = [
    b"Host: 127.0.0.1",
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Version: 13",
]
ODD_LINES = [
    b"Sec-WebSocket-Version: 12",
    b"Sec-WebSocket-Key: x",
    b"Sec-WebSocket-Key: \xff",
    b"Sec-WebSocket-Protocol: \xff",
    b"Sec-WebSocket-Protocol: chat, superchat",
    b"Sec-WebSocket-Extensions: permessage-deflate",
    b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99",
    b"Sec-WebSocket-Extensions: \xe9",
    b"Connection: \x85Upgrade",
    b"Upgrade: \xffwebsocket",
    b"Origin: http://other.test",
    b"Content-Length: 5",
    b"Cookie: session=" + CANARY.encode(),
]
PATHS = [b"/raw/sum", b"/raw/sum", b"/raw/sum", b"/raw/wait?fuzz", b"/sum", b"/nothing", b"/raw/x"]
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPCODES = [TEXT] * 6 + [BINARY, PING, PONG, CLOSE]


def upgrade(rng: random.Random) -> bytes:
    lines = [b"GET %b HTTP/1.1" % rng.choice(PATHS), *UPGRADE]
    if rng.random() < 0.2:
        if rng.random() < 0.5:
            del lines[rng.randrange(1, len(lines))]
        lines += rng.sample(ODD_LINES, rng.randrange(1, 4))
    return b"\r\n".join([*lines, b"", b""])


def frames(rng: random.Random) -> bytes:
    return b"".join(_odd_frame(rng) for _ in range(rng.randrange(1, 8)))


def frame(
    opcode: int,
    payload: bytes,
    mask: bytes | None = b"\x01\x02\x03\x04",
    *,
    is_last: bool = True,
    reserved: int = 0,
    declared: int | None = None,
) -> bytes:
    """A frame of a client, which may be malformed: without a mask, or with another length."""
    length = len(payload) if declared is None else declared
    head = bytes([is_last << 7 | reserved << 4 | opcode])
    masked = 0 if mask is None else 0x80
    if length < 126:
        head += bytes([masked | length])
    elif length < 2**16:
        head += bytes([masked | 126]) + struct.pack(">H", length)
    else:
        head += bytes([masked | 127]) + struct.pack(">Q", length)
    if mask is None:
        return head + payload
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    size = len(payload)
    hidden = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return head + mask + hidden.to_bytes(size, "big")


def _odd_frame(rng: random.Random) -> bytes:
    payload = rng.choice(
        [
            b"",
            f"{CANARY} {rng.randrange(1000)}".encode(),
            CANARY.encode() * rng.randrange(1, 300),
            rng.randbytes(rng.randrange(1, 200)),
            b"\xff\xfe\x80",
            struct.pack(">H", rng.choice((1000, 1001, 999, 1005, 5000))) + b"bye",
        ]
    )
    mask = rng.randbytes(4)
    if rng.random() < 0.7:
        return frame(rng.choice(OPCODES), payload, mask, is_last=rng.random() < 0.9)
    return rng.choice(
        [
            frame(CONTINUATION, payload, mask),
            frame(rng.randrange(16), payload, mask),
            frame(TEXT, payload, None),
            frame(TEXT, payload, mask, reserved=rng.randrange(1, 8)),
            frame(PING, payload + bytes(126), mask),
            frame(PING, payload, mask, is_last=False),
            frame(CLOSE, b"\x03", mask),
            frame(CLOSE, b"", mask) + frame(TEXT, payload, mask),
            frame(TEXT, payload, mask, declared=2**63),
            frame(TEXT, payload, mask, declared=2**40),
            frame(BINARY, payload, mask, declared=len(payload) + 1000),
        ]
    )
