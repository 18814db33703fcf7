"""One HTTP request on a stream of HTTP/2: its body and its response.

The stream's flow-control window bounds the unread part of a body: data is acknowledged once the
application has received it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shoal.server.sockets.timeouts import BodyTimeout
from shoal.server.streams.call import AppCall

if TYPE_CHECKING:
    from starlette.types import Message

    from shoal.server.streams.call import Wire

# From this size of unread data on, the client may have no room to send.
_MUCH_UNREAD: Final = 2**15


class Http2Call(AppCall):
    def __init__(self, wire: Wire, method: str, length: int | None, *, has_body: bool) -> None:
        super().__init__(wire, method, {"type": "http.disconnect"})
        self._to_come = length  # bytes, if the head has a length
        self._body = bytearray()
        self._is_partial = has_body
        self._gives_body = True
        self._timeout: BodyTimeout | None = None
        if has_body:
            shared = self._shared
            self._timeout = BodyTimeout(shared.timeouts, shared.body_timeout_s, self._give_up)

    async def data_received(self, data: bytes, size: int) -> None:
        """Adds a part of the body; `size` is its share of the flow-control window."""
        self._not_acknowledged += size
        if self._to_come is not None:
            self._to_come -= len(data)
            if self._to_come < 0:
                self.refuse(400)
                return
        self._body += data
        if self._timeout is not None:
            self._timeout.received(len(data), is_last=False)
            if len(self._body) >= _MUCH_UNREAD:
                self._timeout.pause()
        self._changed.signal()

    def input_ended(self) -> None:
        if self._to_come:
            self.refuse(400)
            return
        self._is_partial = False
        self._end_timeout()
        self._changed.signal()

    @override
    def drain(self) -> None:
        pass  # its response may go on

    @override
    def leave(self) -> None:
        self._end_timeout()
        super().leave()

    @override
    def _next_message(self) -> Message | None:
        if not self._gives_body or (self._is_partial and not self._body):
            return None
        body, self._body = bytes(self._body), bytearray()
        self._gives_body = has_more = self._is_partial
        self._acknowledge()
        if self._timeout is not None and len(body) >= _MUCH_UNREAD:
            self._timeout.resume()
        return {"type": "http.request", "body": body, "more_body": has_more}

    @override
    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            await self._send_body(message)
        else:
            raise RuntimeError(f"{message['type']!r} is not a message that can come here")

    @override
    def _complete(self) -> None:
        super()._complete()
        self._end_timeout()

    def _give_up(self) -> None:
        self.refuse(408)

    def _end_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.close()
            self._timeout = None
