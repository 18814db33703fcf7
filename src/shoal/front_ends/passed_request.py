"""One request that this front end has passed on to the server's process."""

from __future__ import annotations

from collections import deque
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.front_ends.wire import NUMBER, SECONDS, WINDOW, FrontKind, size_of
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Message, Receive, Send

    from shoal.front_ends.channel import Channel
    from shoal.front_ends.wire import Refusal
    from shoal.loops.parking import Parking

_REPORTED: Final = WINDOW // 2


class PassedRequest:
    """One request, until its answer has ended here.

    What comes for it from the server's process is kept in order.

    Args:
        parking: The event loop's way to wait.
        channel: The channel to the server's process.
        id_: The number of the request.
        refusal: The answer if the server's process can't give one.
        offered: What the server offers by its extension of ASGI.
        kind: What the messages of a whole answer begin with: "http", or "websocket.http".
    """

    _is_over = False  # nothing more is expected of the server's process
    _waiter: Any = None  # of the task that relays the answer
    _wants: Any = None  # of the task that passes on what the client sends
    _wanted = 0
    _taken = 0
    _has_begun = False

    def __init__(
        self,
        parking: Parking,
        channel: Channel,
        id_: int,
        refusal: Refusal,
        offered: Mapping[str, Any],
        kind: str,
    ) -> None:
        self._parking = parking
        self._channel = channel
        self._id = id_
        self._refusal = refusal
        self._offered = offered
        self._kind = kind
        self._frames: deque[tuple[FrontKind, bytes, bytes]] = deque()

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
                self._is_over = True
                self._post_left()  # counts for nothing if it has ended

    # What comes from the server's process.

    def take(self, kind: FrontKind, body: bytes, data: bytes) -> None:
        """Handles a message; see `shoal.front_ends.channel.Handler`."""
        if kind is FrontKind.WANT:
            self._want(NUMBER.unpack(body)[0])
        elif kind is FrontKind.HEARTBEAT:
            beat = self._offered.get("heartbeat")
            if beat is not None:
                beat(SECONDS.unpack_from(body)[0], body[SECONDS.size :])
        elif kind is FrontKind.TRACE:
            trace_id, _, span_id = body.decode("ascii").partition(" ")
            self._offered["note_trace"]((trace_id, span_id))
        elif kind is FrontKind.WATCH_DRAIN:
            watch = self._offered.get("when_draining")
            if watch is not None:
                watch(self._tell_draining)
        elif not self._is_over:
            self._queue(kind, body, data)

    def lose(self) -> None:
        """Ends the request, since the server's process is gone."""
        if not self._is_over:
            self._queue(FrontKind.CUT)
            self._is_over = True

    def _queue(self, kind: FrontKind, body: bytes = b"", data: bytes = b"") -> None:
        self._frames.append((kind, body, data))
        if self._waiter is not None:
            self._parking.wake(self._waiter)

    # The client's side.

    def _left(self) -> None:
        """Handles that the client is gone, or that the server ends and its request must."""
        if self._offered["is_cut_off"]():
            self._channel.post(FrontKind.CUT, self._id)
        elif self._kind == "http":
            self._leave()
        else:
            # All that has come on a WebSocket is passed on first, as is why it has ended.
            self._want(2**31)

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._post_left()
            self._queue(FrontKind.LEFT)

    def _post_left(self) -> None:
        status = self._offered["refused_with"]()
        self._channel.post(FrontKind.LEFT, self._id, NUMBER.pack(status))

    def _tell_draining(self) -> None:
        self._channel.post(FrontKind.DRAINING, self._id)

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
                self._channel.post(FrontKind.MESSAGE, self._id, dumps(message, 5))
            if kind in ("http.disconnect", "websocket.disconnect"):
                self._leave()
                return
            if kind == "http.request" and not message.get("more_body", False):
                return

    async def _relay(self, send: Send) -> None:
        """Sends the answer, part by part."""
        while True:
            while not self._frames:
                self._waiter = self._parking.new_waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            kind, body, data = self._frames.popleft()
            match kind:
                case FrontKind.BEGIN:
                    size = NUMBER.unpack_from(body)[0]
                    start = NUMBER.size
                    status, headers, is_last = unpickled(body[start : start + size])
                    data = data or body[start + size :]
                    self._has_begun = True
                    begin = {"type": "http.response.start", "status": status, "headers": headers}
                    await send(begin)
                    await send(_part(data, is_last=is_last))
                    if is_last:
                        return
                    self._count(len(data))
                case FrontKind.PART:
                    await send(_part(body, is_last=False))
                    self._count(len(body))
                case FrontKind.LAST:
                    await send(_part(body, is_last=True))
                    return
                case FrontKind.SEND:
                    self._has_begun = True
                    message: Message = unpickled(body)
                    await send(message)
                    self._count(size_of(message))
                case FrontKind.TEXTS:
                    texts: list[str] = unpickled(body)
                    await self._send_texts(send, texts)
                    self._count(sum(map(len, texts)))
                case FrontKind.CUT:
                    await self._refuse(send)
                    return
                case _:
                    return

    async def _send_texts(self, send: Send, texts: list[str]) -> None:
        send_texts = self._offered.get("send_texts")
        if send_texts is not None:
            await send_texts(texts)
            return
        for text in texts:
            await send({"type": "websocket.send", "text": text})

    async def _refuse(self, send: Send) -> None:
        """Answers 503, unless the answer has begun."""
        if not self._has_begun:
            headers, body = self._refusal
            headers = [*headers, (b"content-length", b"%d" % len(body))]
            start = f"{self._kind}.response.start"
            await send({"type": start, "status": 503, "headers": headers})
            await send({"type": f"{self._kind}.response.body", "body": body})

    def _count(self, size: int) -> None:
        """Counts bytes that the client has taken, and reports them now and then."""
        self._taken += size
        if self._taken >= _REPORTED:
            self._channel.post(FrontKind.TAKEN, self._id, NUMBER.pack(self._taken))
            self._taken = 0


def _part(data: bytes, *, is_last: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}
