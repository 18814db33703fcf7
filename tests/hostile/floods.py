"""Floods: connections that come and go, HTTP/2 streams that are reset at once, one-byte chunks."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import fuzz_http2 as http2
from agreed import HANG_S
from good_client import AskingMeanwhile
from held_places import HEAD, SETTINGS, headers, percentile
from hostile_server import MIB, HostileServer, wait_until

MOST_MEMORY: Final = 20 * MIB
CHUNK: Final = b"1\r\nx\r\n"


@dataclass
class Flood:
    sent: int = 0
    took_s: float = 0.0
    answer: bytes = b""
    good_s: list[float] = field(default_factory=list)
    grown: int = 0
    left: int = 0

    def p99_s(self) -> float:
        return percentile(self.good_s, 99)

    def flaws(self) -> list[str]:
        checks = {
            "nobody else was served": not self.good_s,
            f"the memory grew by {self.grown / MIB:.1f} MiB": self.grown > MOST_MEMORY,
            f"{self.left} sockets were left": self.left,
        }
        return [flaw for flaw, is_so in checks.items() if is_so]


@contextmanager
def _others_ask(server: HostileServer, found: Flood) -> Iterator[None]:
    """Has a good client ask meanwhile, and looks at what is left afterwards."""
    server.ask("POST", "/sum", "warm")
    sockets, memory = server.sockets(), server.memory()
    began = time.monotonic()
    with AskingMeanwhile(server) as others:
        yield
        found.took_s = time.monotonic() - began
    assert not others.asked.failure, others.asked.failure
    found.good_s = others.asked.times_s
    found.grown = others.asked.most_memory - memory
    server.ask("POST", "/sum", "behind")  # all that came before it has been accepted
    wait_until(lambda: server.sockets() <= sockets, HANG_S)
    found.left = max(0, server.sockets() - sockets)


def flood_of_connections(server: HostileServer, count: int) -> Flood:
    """Opens connections and closes them, with nothing sent, a byte, or a request."""
    found = Flood()
    openings = [
        b"",
        b"G",
        HEAD,
        http2.PREFACE,
        b"GET /raw/state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ]
    with _others_ask(server, found):
        for number in range(count):
            with server.connect() as client:
                client.sendall(openings[number % len(openings)])
            found.sent += 1
    return found


def flood_of_resets(server: HostileServer, count: int, per_connection: int = 10_000) -> Flood:
    """Opens HTTP/2 streams and resets each at once; connects again when it is sent away."""
    found = Flood()
    asked = headers(b"POST", b"/raw/wait?flood", ends=False)
    reset = struct.pack(">I", 8)
    with _others_ask(server, found):
        while found.sent < count:
            streams = min(per_connection, count - found.sent)
            with server.connect() as client:
                client.sendall(SETTINGS)
                for at in range(0, streams, 50):
                    pairs = [
                        _on_stream(asked, 2 * number + 1)
                        + http2.frame(http2.RST, 0, 2 * number + 1, reset)
                        for number in range(at, min(at + 50, streams))
                    ]
                    found.sent += len(pairs)
                    if not _send(client, b"".join(pairs)):
                        break
                found.answer = found.answer or _answer(client)
    return found


def flood_of_chunks(server: HostileServer, count: int) -> Flood:
    """Sends one body in chunks of one byte each, until it is whole or refused."""
    found = Flood()
    piece = CHUNK * 100
    with _others_ask(server, found), server.connect() as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while found.sent < count and _send(client, piece):
            found.sent += 100
        _send(client, b"0\r\n\r\n")
        found.answer = _answer(client)
    return found


FLOODS: Final[dict[str, Callable[[HostileServer, int], Flood]]] = {
    "connections": flood_of_connections,
    "resets": flood_of_resets,
    "chunks": flood_of_chunks,
}


def _on_stream(frame: bytes, stream: int) -> bytes:
    """The same frame on another stream. Its header fields are not in any table."""
    return frame[:5] + struct.pack(">I", stream) + frame[9:]


def _send(client: socket.socket, data: bytes) -> bool:
    try:
        client.sendall(data)
    except OSError:
        return False
    return True


def _answer(client: socket.socket) -> bytes:
    """Ends this side, and reads until the server has dealt with all that was sent."""
    received = b""
    try:
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(2**16):
            received += data
    except OSError:
        pass
    return received[:100]
