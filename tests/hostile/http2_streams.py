"""Very many requests on one HTTP/2 connection. Its frames are made by hand, since h2 is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import fuzz_http2 as http2
import hpack
from held_places import ASK, SETTINGS

if TYPE_CHECKING:
    import socket

    from hostile_server import HostileServer

AT_ONCE: Final = 50
WINDOW: Final = http2.frame(http2.WINDOW, 0, 0, b"\x3f\xff\xff\xff")
NO_STREAM: Final = 2**31


def unanswered(server: HostileServer, count: int) -> list[int]:
    """Makes requests on one connection, until the server takes no more of them.

    Returns:
        The streams that the server has not refused, and not answered.
    """
    asked: set[int] = set()
    answered: set[int] = set()
    with server.connect() as client:
        connection = _Connection(client)
        for first in range(0, count, AT_ONCE):
            streams = {2 * number + 1 for number in range(first, min(first + AT_ONCE, count))}
            asked |= streams
            connection.ask(sorted(streams))
            answered |= connection.answered(streams)
            if not connection.is_open or connection.last_served < NO_STREAM:
                break
        return sorted(one for one in asked - answered if one <= connection.last_served)


class _Connection:
    def __init__(self, client: socket.socket) -> None:
        self._socket = client
        self._received = b""
        fields = [(b":method", b"GET"), (b":path", b"/raw/nothing"), *ASK]
        encoder = hpack.Encoder()
        encoder.header_table_size = 0  # so that each block can be read by itself
        self._block = encoder.encode(fields)
        self.is_open = True
        self.last_served = NO_STREAM
        client.sendall(SETTINGS + WINDOW)

    def ask(self, streams: list[int]) -> None:
        flags = http2.END_HEADERS | http2.END_STREAM
        frames = [http2.frame(http2.HEADERS, flags, stream, self._block) for stream in streams]
        try:
            self._socket.sendall(b"".join(frames))
        except OSError:
            self.is_open = False

    def answered(self, streams: set[int]) -> set[int]:
        """Which of the streams end, before the connection does."""
        ended: set[int] = set()
        while self.is_open and ended < streams:
            kind, flags, stream, payload = self._frame()
            if kind == http2.GOAWAY:
                self.last_served = int.from_bytes(payload[:4], "big")
            elif kind in (http2.DATA, http2.HEADERS) and flags & http2.END_STREAM:
                ended.add(stream)
        return ended

    def _frame(self) -> tuple[int, int, int, bytes]:
        head = self._exactly(9)
        payload = self._exactly(int.from_bytes(head[:3], "big"))
        if not self.is_open:
            return -1, 0, 0, b""
        return head[3], head[4], int.from_bytes(head[5:9], "big"), payload

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size and self.is_open:
            try:
                data = self._socket.recv(2**16)
            except OSError:
                data = b""
            self.is_open = bool(data)
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken
