"""Clients that leave, in every state of every protocol: when the handler of their request ended."""

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import fuzz_http2 as http2
import hpack
from fuzz_websocket import CLOSE, TEXT, UPGRADE
from fuzz_websocket import frame as websocket_frame
from good_client import request
from hangs import HANG_S
from held_places import ASK, NO_WINDOW, SETTINGS
from hostile_server import HostileServer, wait_until

NO_LINGER: Final = struct.pack("ii", 1, 0)
ENDLESS: Final = 10**9
CANCEL: Final = http2.frame(http2.RST, 0, 1, b"\0\0\0\x08")


@dataclass(frozen=True)
class State:
    """A state in which a client leaves."""

    opening: Callable[[str], bytes]
    reads: bool = False
    behind: bytes = b""
    last: bytes = b""


def _held(name: str) -> bytes:
    return request("/held", name)


def _steps(name: str) -> bytes:
    return request("/steps", {"name": name, "count": ENDLESS})


def _half_sent(name: str) -> bytes:
    return (
        b"POST /raw/wait?%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nhalf"
        % name.encode()
    )


def _half_chunked(name: str) -> bytes:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n5\r\n"
    return b"POST /raw/wait?%b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b" % (name.encode(), chunked)


def _flood(name: str) -> bytes:
    return b"GET /raw/flood?%b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % name.encode()


def _upgrade(name: str) -> bytes:
    return b"\r\n".join([f"GET /raw/wait?{name} HTTP/1.1".encode(), *UPGRADE, b"", b""])


def _http2(path: str, item: str = "", *, ends: bool = True, start: bytes = SETTINGS) -> bytes:
    fields = [(b":method", b"POST"), (b":path", path.encode()), *ASK]
    block = hpack.Encoder().encode([*fields, (b"content-type", b"application/json")])
    data = http2.frame(http2.DATA, http2.END_STREAM if ends else 0, 1, item.encode())
    return start + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block) + data


def _held2(name: str) -> bytes:
    return _http2("/held", f'"{name}"')


def _steps2(name: str) -> bytes:
    return _http2("/steps", f'{{"name":"{name}","count":{ENDLESS}}}')


def _half_sent2(name: str) -> bytes:
    return _http2(f"/raw/wait?{name}", "half", ends=False)


def _no_window(name: str) -> bytes:
    return _http2(f"/raw/flood?{name}", start=NO_WINDOW)


STATES: Final = {
    "half a body": State(_half_sent),
    "half a chunked body": State(_half_chunked),
    "running": State(_held),
    "running, a byte behind": State(_held, behind=b"X"),
    "running, a line break behind": State(_held, behind=b"\r\n"),
    "running, a request behind": State(_held, behind=request("/sum", "behind")),
    "running, much behind": State(_held, behind=request("/sum", "b" * 500) * 150),
    "streaming": State(_steps, reads=True),
    "streaming, a request behind": State(_steps, reads=True, behind=request("/sum", "behind")),
    "streaming, unread": State(_flood),
    "HTTP/2, half a body": State(_half_sent2),
    "HTTP/2, half a body, stream reset": State(_half_sent2, last=CANCEL),
    "HTTP/2, running": State(_held2),
    "HTTP/2, running, stream reset": State(_held2, last=CANCEL),
    "HTTP/2, streaming": State(_steps2, reads=True),
    "HTTP/2, streaming, stream reset": State(_steps2, reads=True, last=CANCEL),
    "HTTP/2, window 0": State(_no_window),
    "HTTP/2, window 0, stream reset": State(_no_window, last=CANCEL),
    "WebSocket": State(_upgrade, reads=True),
    "WebSocket, half a frame behind": State(_upgrade, reads=True, behind=b"\x81\xff\0\0"),
    "WebSocket, messages behind": State(
        _upgrade, reads=True, behind=websocket_frame(TEXT, b"text") * 50
    ),
    "WebSocket, closed by a frame": State(
        _upgrade, reads=True, last=websocket_frame(CLOSE, b"\x03\xe8")
    ),
}
# A client that ends only its own side counts as gone; see `Exchange.client_left`.
WAYS: Final = ("reset", "close", "half close")


def ways_of(state: str) -> tuple[str, ...]:
    return ("frame",) if STATES[state].last else WAYS


def leave(server: HostileServer, state: str, way: str, name: str) -> float | None:
    """Has a client leave in a state; returns how long its handler went on, in seconds.

    None if the handler had not ended after some seconds.
    """
    does = STATES[state]
    with server.connect() as client:
        client.sendall(does.opening(name))
        assert server.until("began", name), f"{state}: never began"
        if does.reads:
            client.recv(2**16)
        if does.behind:
            client.sendall(does.behind)
        left_at = time.monotonic()
        if way == "frame":
            client.sendall(does.last)
        elif way == "half close":
            client.shutdown(socket.SHUT_WR)
        else:
            if way == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            client.close()
        ended_at = server.until("ended", name)
    return None if ended_at is None else max(0.0, ended_at - left_at)


def leave_queue(server: HostileServer, way: str, name: str) -> float | None:
    """Has a client leave that waits in the queue.

    Returns:
        How long it was still queued, in seconds; None if for some seconds, or if its handler began.
    """
    with server.connect() as first, server.connect() as second:
        first.sendall(request("/queued", f"{name}-first"))
        assert server.until("began", f"{name}-first")
        second.sendall(request("/queued", f"{name}-second"))
        assert wait_until(lambda: _queue(server) == (1, 1), HANG_S, every_s=0.002)
        left_at = time.monotonic()
        if way == "reset":
            second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        if way == "half close":
            second.shutdown(socket.SHUT_WR)
        else:
            second.close()
        is_out = wait_until(lambda: _queue(server) == (1, 0), HANG_S, every_s=0.001)
        took_s = time.monotonic() - left_at
    # With the first one's leaving the handler is free for the next, if there still is one.
    is_idle = wait_until(lambda: _queue(server) == (0, 0), HANG_S)
    return took_s if is_out and is_idle else None


def _queue(server: HostileServer) -> tuple[int, int]:
    """How many requests run at the endpoint that holds one, and how many wait there."""
    counts = server.ask("GET", "/-/readyz")[1]["endpoints"]["queued"]
    return counts["running"], counts["queued"]
