"""Opens connections of clients: HTTP/1.1 first, then another protocol if the client asks for it."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from shoal.server.http1.connection import Http1Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.server.http1.head import HeadParser
    from shoal.server.shared import Shared
    from shoal.server.sockets.tls import TlsTransport
    from shoal.server.sockets.transport import Transport

_log = logging.getLogger("shoal.server")


def load_stream_protocols() -> None:
    """Loads HTTP/2 and WebSocket, which takes longer than the rest of a start."""
    import_module("shoal.server.streams.http2")
    import_module("shoal.server.streams.http1_websocket")


class Client:
    """A client's transport, on which the connection may change its protocol."""

    __slots__ = ("_released", "_shared", "_transport")

    def __init__(
        self, shared: Shared, transport: Transport | TlsTransport, released: Callable[[], object]
    ) -> None:
        self._shared = shared
        self._transport = transport
        self._released = released  # called once, when the connection has ended

    def start(self) -> None:
        Http1Connection(self._shared, self._transport, self._released, self).start()

    def switch_to_http2(self, received: bytes) -> None:
        with _loading():
            from shoal.server.streams.http2 import Http2Connection

        Http2Connection(self._shared, self._transport, self._released).start(received)

    def switch_to_websocket(self, parser: HeadParser, received: bytes) -> None:
        with _loading():
            from shoal.server.streams.http1_websocket import WebSocketConnection

        websocket = WebSocketConnection(self._shared, self._transport, self._released, parser)
        websocket.start(received)


@contextmanager
def _loading() -> Generator[None]:
    try:
        yield
    except OSError as error:  # too many open files: the next client tries again
        _log.error("can't load what speaks HTTP/2 and WebSocket: %s", error)
        raise
