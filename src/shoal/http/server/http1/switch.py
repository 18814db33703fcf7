"""What a connection asks for when its client wants to speak another protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shoal.http.server.http1.head import HeadParser


class Switch(Protocol):
    """Continues with a connection that speaks another protocol, at the same transport."""

    def switch_to_http2(self, received: bytes) -> None:
        """Goes on with HTTP/2, after what was received."""
        ...

    def switch_to_websocket(self, parser: HeadParser, received: bytes) -> None:
        """Goes on with WebSocket, after a request to upgrade and what was received after it."""
        ...
