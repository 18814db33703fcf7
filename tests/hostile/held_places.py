"""Clients that hold a place, and clients that leave, in every state of every protocol.

A server has so many places for connections (``--max-connections``). A kind of client that can hold
one for ever, without ever being done, shuts everyone out with a thousand of them. Of a client that
leaves, it is measured when the handler of its request ended.
"""

import select
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import fuzz_http2 as http2
import hpack
from agreed import HANG_S
from fuzz_websocket import CLOSE, TEXT, UPGRADE
from fuzz_websocket import frame as websocket_frame
from good_client import AskingMeanwhile, GoodClient, request
from hostile_server import MIB, HostileServer, wait_until

MOST_MEMORY = 64 * MIB
HEAD: Final = b"POST /sum HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SETTINGS: Final = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, b"")
NO_WINDOW: Final = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\0")
ASK: Final = [(b":scheme", b"http"), (b":authority", b"127.0.0.1")]
NO_LINGER: Final = struct.pack("ii", 1, 0)
ENDLESS: Final = 10**9
CANCEL: Final = http2.frame(http2.RST, 0, 1, b"\0\0\0\x08")


def headers(method: bytes, path: bytes, *, ends: bool) -> bytes:
    block = hpack.Encoder().encode([(b":method", method), (b":path", path), *ASK])
    flags = http2.END_HEADERS | (http2.END_STREAM if ends else 0)
    return http2.frame(http2.HEADERS, flags, 1, block)


@dataclass(frozen=True)
class Holder:
    opening: bytes
    trickle: bytes = b""
    reads: bool = True


UNREAD: Final = (
    SETTINGS
    + http2.frame(http2.WINDOW, 0, 0, b"\x3f\xff\xff\xff")
    + headers(b"GET", b"/raw/flood", ends=True)
    + http2.frame(http2.WINDOW, 0, 1, b"\x3f\xff\xff\xff")
)
HOLDERS: Final = {
    "silence": Holder(b""),
    "one stray byte": Holder(b"G"),
    "half a TLS hello": Holder(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)),
    "slow headers": Holder(HEAD, b"X-A: b\r\n"),
    "idle after an answer": Holder(b"GET /raw/state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "sized body": Holder(HEAD + b"Content-Length: 100000\r\n\r\nx"),
    "slow sized body": Holder(HEAD + b"Content-Length: 100000\r\n\r\nx", b"x"),
    "chunked body": Holder(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"),
    "slow chunked body": Holder(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "never reads": Holder(b"GET /raw/flood HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", reads=False),
    "half a preface": Holder(http2.PREFACE[:20]),
    "preface": Holder(http2.PREFACE),
    "preface and settings": Holder(SETTINGS),
    "preface and pings": Holder(SETTINGS, http2.frame(http2.PING, 0, 0, bytes(8))),
    "HEADERS and RST_STREAM": Holder(
        SETTINGS
        + headers(b"POST", b"/sum", ends=False)
        + http2.frame(http2.RST, 0, 1, b"\0\0\0\x08")
    ),
    "HEADERS without an end": Holder(
        SETTINGS + http2.frame(http2.HEADERS, 0, 1, b"\x83"),
        http2.frame(http2.CONTINUATION, 0, 1, b""),
    ),
    "HTTP/2 body": Holder(SETTINGS + headers(b"POST", b"/sum", ends=False)),
    "slow HTTP/2 body": Holder(
        SETTINGS + headers(b"POST", b"/sum", ends=False), http2.frame(http2.DATA, 0, 1, b"x")
    ),
    "HTTP/2 body beside pings": Holder(
        SETTINGS + headers(b"POST", b"/sum", ends=False), http2.frame(http2.PING, 0, 0, bytes(8))
    ),
    "window 0": Holder(NO_WINDOW + headers(b"GET", b"/raw/flood", ends=True)),
    "window 0 and pings": Holder(
        NO_WINDOW + headers(b"GET", b"/raw/flood", ends=True),
        http2.frame(http2.PING, 0, 0, bytes(8)),
    ),
    "HTTP/2 client that never reads": Holder(UNREAD, reads=False),
    "HTTP/2 client that pings and never reads": Holder(
        UNREAD, http2.frame(http2.PING, 0, 0, bytes(8)), reads=False
    ),
    "silent WebSocket": Holder(b"\r\n".join([b"GET /raw/sum HTTP/1.1", *UPGRADE, b"", b""])),
    "WebSocket that is not accepted": Holder(
        b"\r\n".join([b"GET /nothing HTTP/1.1", *UPGRADE, b"", b""])
    ),
}


@dataclass
class Held:
    """What became of a server whose places were held."""

    kept: Counter[str] = field(default_factory=Counter)
    back_after_s: float = 0.0
    grown: int = 0
    good_s: list[float] = field(default_factory=list)
    failure: str = ""
    first_s: float | None = None

    def p99_s(self) -> float:
        return percentile(self.good_s, 99)


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile of some values; of few, the largest."""
    if len(values) < 2:
        return max(values, default=float("nan"))
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


class _Places:
    """The clients that hold places, on sockets that never wait."""

    def __init__(self, server: HostileServer, kinds: Sequence[str], each: int) -> None:
        self.kinds: dict[int, str] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.poll()
        for _ in range(each):
            for kind in kinds:
                self._open(server, kind)

    def _open(self, server: HostileServer, kind: str) -> None:
        holder = HOLDERS[kind]
        client = socket.socket()
        if not holder.reads:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        client.settimeout(HANG_S)
        client.connect(("127.0.0.1", server.port))
        client.sendall(holder.opening)
        client.setblocking(False)
        fd = client.fileno()
        self._sockets[fd] = client
        self.kinds[fd] = kind
        events = select.POLLRDHUP | (select.POLLIN if holder.reads else 0)
        self._poll.register(fd, events)

    def turn(self) -> None:
        """Reads what has come; forgets the clients whose connections the server has ended."""
        for fd, events in self._poll.poll(0):
            if events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                self._forget(fd)
            else:
                self._sockets[fd].recv(2**16)

    def trickle(self) -> None:
        for fd, client in list(self._sockets.items()):
            bit = HOLDERS[self.kinds[fd]].trickle
            if bit:
                try:
                    client.send(bit)
                except BlockingIOError:
                    pass
                except OSError:
                    self._forget(fd)

    def close(self) -> None:
        for client in self._sockets.values():
            client.close()

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._sockets.pop(fd).close()
        del self.kinds[fd]


def hold_places(
    server: HostileServer,
    kinds: Sequence[str],
    each: int,
    *,
    within_s: float,
    trickle_s: float,
    at_least_s: float = 0.0,
) -> Held:
    """Has clients hold places, and good ones ask meanwhile, until all places are given back."""
    found = Held()
    memory = server.memory()
    late = GoodClient(server.port)
    with AskingMeanwhile(server) as others:
        began = time.monotonic()
        places = _Places(server, kinds, each)
        late.begin()
        next_trickle = began
        try:
            while (now := time.monotonic()) < began + within_s:
                if places.kinds:
                    places.turn()
                    found.back_after_s = now - began
                elif now >= began + at_least_s:
                    break
                if now >= next_trickle:
                    places.trickle()
                    next_trickle = now + trickle_s
                if found.first_s is None:
                    found.first_s = late.answered_after_s()
                time.sleep(0.005)
            found.kept = Counter(places.kinds.values())
            if found.first_s is None:
                found.first_s = late.answered_after_s(wait_s=1.0)
        finally:
            places.close()
            late.close()
    found.good_s = others.asked.times_s
    found.failure = others.asked.failure
    found.grown = others.asked.most_memory - memory
    return found


@dataclass(frozen=True)
class State:
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
