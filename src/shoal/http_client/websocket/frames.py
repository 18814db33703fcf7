"""The frames of a WebSocket, from its client's side, without input and output; by wsproto.

httpx-ws would read and write, too. But it does not bound a message that comes in pieces, and what
is raised inside of its block comes out as a group of exceptions.
"""

from __future__ import annotations

import base64
import hashlib
import io
import secrets
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.http_client.answer import StreamingAnswer

SUBPROTOCOL: Final = "shoal.v1"

# RFC 6455 names it.
_ACCEPTED_WITH: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handshake:
    """The request for one WebSocket.

    Attributes:
        headers: The headers of the request.
    """

    def __init__(self) -> None:
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.headers = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-key": self._key,
            "sec-websocket-version": "13",
            "sec-websocket-protocol": SUBPROTOCOL,
        }

    def check(self, answer: StreamingAnswer) -> None:
        """Checks the answer of a server that has switched protocols.

        Raises:
            ConnectionError: It is not the answer to this request.
        """
        digest = hashlib.sha1((self._key + _ACCEPTED_WITH).encode(), usedforsecurity=False).digest()
        if answer.header("sec-websocket-accept") != base64.b64encode(digest).decode():
            raise ConnectionError(f"{answer.url} did not accept this WebSocket")
        if answer.header("sec-websocket-protocol") != SUBPROTOCOL:
            raise ConnectionError(f"{answer.url} does not speak {SUBPROTOCOL}")


class Frames:
    """Reads and writes the frames of one WebSocket.

    Args:
        max_bytes: The largest message, in bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        import wsproto.connection

        self._frames = wsproto.connection.Connection(wsproto.connection.ConnectionType.CLIENT)
        self._max_bytes = max_bytes
        # Not a list of pieces, of which a server can send any number that are empty.
        self._message = io.StringIO()
        self._size = 0

    def received(self, data: bytes) -> Iterator[str | bytes]:
        """Handles what was received.

        Args:
            data: The next bytes.

        Yields:
            A text: a message of the server. Bytes: what must be sent, the answer to a ping.

        Raises:
            ConnectionError: The server has closed the WebSocket, or sent what it must not.
        """
        import wsproto.events
        import wsproto.utilities

        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                match event:
                    case wsproto.events.Ping():
                        yield self._frames.send(event.response())
                    case wsproto.events.TextMessage():
                        if (text := self._joined(event)) is not None:
                            yield text
                    case wsproto.events.BytesMessage():
                        raise ConnectionError("the server sent a binary message")
                    case wsproto.events.CloseConnection():
                        raise ConnectionError(
                            f"the server closed the WebSocket with {event.code}"
                            f"{f', {event.reason}' if event.reason else ''}"
                        )
                    case _:
                        pass
        except wsproto.utilities.RemoteProtocolError as error:
            raise ConnectionError(f"the server sent what is no WebSocket: {error}") from None

    def text(self, message: bytes) -> bytes:
        """Returns the frame of a text message, given in UTF-8."""
        import wsproto.events

        return self._frames.send(wsproto.events.TextMessage(message.decode()))

    def binary(self, message: bytes) -> bytes:
        """Returns the frame of a binary message."""
        import wsproto.events

        return self._frames.send(wsproto.events.BytesMessage(message))

    def ping(self) -> bytes:
        """Returns the frame of a ping."""
        import wsproto.events

        return self._frames.send(wsproto.events.Ping())

    def close(self) -> bytes:
        """Returns the frame that closes the WebSocket; empty if it is closed."""
        import wsproto.connection
        import wsproto.events

        if self._frames.state is not wsproto.connection.ConnectionState.OPEN:
            return b""
        return self._frames.send(wsproto.events.CloseConnection(1000))

    def _joined(self, event: Any) -> str | None:
        """Returns a message that is whole, of which this is the last piece."""
        text: str = event.data
        self._size += len(text) if text.isascii() else len(text.encode())
        if self._size > self._max_bytes:
            raise ConnectionError(
                f"the server sent more than {self._max_bytes} bytes; set max_answer_bytes"
            )
        self._message.write(text)
        if not event.message_finished:
            return None
        whole, self._message, self._size = self._message.getvalue(), io.StringIO(), 0
        return whole
