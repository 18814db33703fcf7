"""One request that this front end has passed on to the server's process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.asgi.extensions import DISCONNECT
from shoal.front_ends.wire import WINDOW, size_of
from shoal.http.requests.content_coding import compressed
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.front_ends.front_end import FrontEnd

_REPORTED: Final = WINDOW // 2


class PassedRequest:
    """One request, until its answer has ended here.

    What comes for it from the server's process is kept in order.

    Args:
        front_end: What has passed it on.
        id_: The number of the request.
        scope: The scope of ASGI.
    """

    _is_over = False  # nothing more is expected of the server's process
    _waiter: Any = None  # of the task that relays the answer
    _wants: Any = None  # of the task that passes on what the client sends
    _wanted = 0
    _taken = 0
    _has_begun = False
    _compress: tuple[bytes, int] | None = None

    def __init__(self, front_end: FrontEnd, id_: int, scope: Scope) -> None:
        self._front_end = front_end
        self._parking = front_end.parking
        self._id = id_
        self._is_websocket = scope["type"] == "websocket"
        self._offered: Mapping[str, Any] = scope["extensions"][DISCONNECT]
        self._came: deque[tuple[str, Any]] = deque()

    async def run(self, receive: Receive | None, send: Send, first: Message | None = None) -> None:
        """Passes on what the client sends, and the answer.

        Args:
            receive: The ASGI callable; None if the request was passed on whole.
            send: The ASGI callable.
            first: A message that was received already.

        Cancellation: the server's process is told that the client is gone.
        """
        watch = self._offered["when_left"]
        try:
            watch(self._left)
            if receive is None:
                await self._relay(send)
                return
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_messages, receive, first)
                await self._relay(send)
                tasks.cancel_scope.cancel()
        finally:
            watch(None)
            if not self._is_over:
                self._end()

    # What comes from the server's process.

    def take(self, name: str, content: Any) -> None:
        """Handles a message; see `shoal.front_ends.wire`."""
        match name:
            case "want":
                self._want(content)
            case "compress":
                self._compress = content
            case "heartbeat":
                self._offered["heartbeat"](*content)
            case "trace":
                self._offered["note_trace"](content)
            case "watch drain":
                self._offered["when_draining"](self._tell_draining)
            case _:
                if not self._is_over:
                    self._queue(name, content)

    def lose(self) -> None:
        """Ends the request, since the server's process is gone."""
        if not self._is_over:
            self._queue("cut")
            self._is_over = True

    def _queue(self, name: str, content: Any = None) -> None:
        self._came.append((name, content))
        if self._waiter is not None:
            self._parking.wake(self._waiter)

    # The client's side.

    def _left(self) -> None:
        """Handles that the client is gone, or that the server ends and its request must."""
        if self._offered["is_cut_off"]():
            self._post("cut")
        elif self._is_websocket:
            # All that has come on a WebSocket is passed on first, as is why it has ended.
            self._want(2**31)
        else:
            self._leave()

    def _leave(self) -> None:
        if not self._is_over:
            self._end()
            self._queue("ended")

    def _end(self) -> None:
        self._is_over = True
        self._post("left", self._offered["refused_with"]())

    def _post(self, name: str, content: object = None, size: int = 0) -> None:
        self._front_end.channel.post(name, self._id, content, size)

    def _tell_draining(self) -> None:
        self._post("draining")

    def _want(self, count: int) -> None:
        self._wanted += count
        if self._wants is not None:
            self._parking.wake(self._wants)

    async def _pass_messages(self, receive: Receive, first: Message | None) -> None:
        """Passes on what the client sends, as far as the application wants it."""
        while not self._is_over:
            while not self._wanted:
                self._wants = self._parking.new_waiter()
                try:
                    await self._wants
                finally:
                    self._wants = None
            self._wanted -= 1
            message, first = first or await receive(), None
            kind = message["type"]
            if kind != "http.disconnect" and not self._is_over:
                self._post("message", message, size_of(message))
            if kind in ("http.disconnect", "websocket.disconnect"):
                self._leave()
                return
            if kind == "http.request" and not message.get("more_body", False):
                return

    async def _relay(self, send: Send) -> None:
        """Sends the answer, part by part."""
        came = self._came
        while True:
            while not came:
                self._waiter = self._parking.new_waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            name, content = came.popleft()
            match name:
                case "send":
                    await self._send_some(send, content)
                case "send pickled":
                    await self._send_some(send, [unpickled(content)])
                case "texts":
                    await self._offered["send_texts"](content)
                    self._count(sum(map(len, content)))
                case _:
                    self._is_over = True
                    if name == "last":
                        for message in self._compressed(content):
                            await send(message)
                    elif name == "cut" and not self._has_begun:
                        await self._refuse(send)
                    return

    async def _send_some(self, send: Send, messages: list[Message]) -> None:
        self._has_begun = True
        for message in messages:
            await send(message)
            self._count(size_of(message))

    def _compressed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Returns the messages of a whole answer, compressed if the application wants that."""
        if self._compress is None:
            return messages
        (accept_encoding, least_bytes), (start, part) = self._compress, messages
        headers = [header for header in start["headers"] if header[0] != b"content-length"]
        body, made = compressed(accept_encoding, part["body"], headers, least_bytes)
        length = (b"content-length", b"%d" % len(body))
        return {**start, "headers": [*made, length]}, {**part, "body": body}

    async def _refuse(self, send: Send) -> None:
        headers, body = self._front_end.refusal
        kind = "websocket.http.response" if self._is_websocket else "http.response"
        await send({"type": f"{kind}.start", "status": 503, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})

    def _count(self, size: int) -> None:
        """Counts bytes that the client has taken, and reports them now and then."""
        self._taken += size
        if self._taken >= _REPORTED:
            self._post("taken", self._taken)
            self._taken = 0
