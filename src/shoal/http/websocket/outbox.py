"""What waits to be sent on a WebSocket, bounded; one task sends it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.http.websocket.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Send

    from shoal.http.websocket.request import SocketRequest
    from shoal.loops.parking import Parking

# How much may wait: messages, and bytes of results, beyond which no more are read; and bytes of
# streams.
_MOST_UNSENT: Final = 2**11
_MOST_UNSENT_BYTES: Final = 2**20
_SENT_AT_ONCE: Final = 2**16  # bytes


class Outbox:
    """The messages that wait to be sent.

    Args:
        send: The ASGI callable.
        offered: What the server offers; None if it is another one than this package's.
        send_timeout_s: How long another server may take for one message, in seconds.
        parking: The event loop's way to wait.
        gave_up: Called when the client is gone, or does not read.

    Attributes:
        has_sent: Set when there is room for more.
    """

    def __init__(
        self,
        send: Send,
        offered: Mapping[str, Any] | None,
        send_timeout_s: float,
        parking: Parking,
        gave_up: Callable[[], object],
    ) -> None:
        self._send = send
        self._offered = offered
        self._send_timeout_s = send_timeout_s
        self._gave_up = gave_up
        self._waiting: deque[tuple[SocketRequest | None, bytes]] = deque()
        self._stream_bytes = 0
        self._result_bytes = 0
        self.has_sent = Signal(parking)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more of the client's messages should be read."""
        return len(self._waiting) >= _MOST_UNSENT or self._result_bytes >= _MOST_UNSENT_BYTES

    @property
    def has_room(self) -> bool:
        """Whether streams may pass on more than one item each."""
        return self._stream_bytes < _MOST_UNSENT_BYTES

    def put_item(self, request: SocketRequest, text: bytes) -> None:
        """Adds an item of a stream."""
        request.credit -= 1
        request.unsent += 1
        self._stream_bytes += len(text)
        self._waiting.append((request, text))

    def put_last(self, request: SocketRequest, kind: bytes, text: bytes) -> None:
        """Adds the last message of a request."""
        text = b'{"id":%b,"%b":%b}' % (request.id, kind, text)
        self._result_bytes += len(text)
        self._waiting.append((None, text))

    async def send_some(self) -> None:
        """Sends what comes first, several messages at once where the server offers that."""
        texts = self._taken()
        if self._offered is not None:
            await self._offered["send_texts"](texts)
        else:
            for each in texts:
                await self.send({"type": "websocket.send", "text": each.decode()})
        self.has_sent.set()

    def _taken(self) -> list[bytes]:
        """Takes the messages that are sent next."""
        texts: list[bytes] = []
        size = 0
        while self._waiting and size < _SENT_AT_ONCE:
            request, text = self._waiting.popleft()
            size += len(text)
            if request is None:
                self._result_bytes -= len(text)
            else:
                self._stream_bytes -= len(text)
                request.unsent -= 1
                request.tell_stream()
                text = b'{"id":%b,"next":%b}' % (request.id, text)
            texts.append(text)
        return texts

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message of ASGI before all that waits."""
        try:
            if self._offered is not None:  # the server itself limits the time
                await self._send(message)
            else:
                with anyio.fail_after(self._send_timeout_s):
                    await self._send(message)
        except (OSError, TimeoutError):
            self._gave_up()
