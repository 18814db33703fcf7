"""The messages for one call of the application: pieces of the body, then one disconnect.

Stock Hypercorn passes everything through one bounded channel, including the disconnect message. An
application that answers without reading its body (an early 413) leaves that channel full, and the
task that sends the disconnect waits for ever, with the connection and the task that closed it. Here
only the pieces of the body are bounded. The disconnect closes the channel, which needs no space in
it and no checkpoint.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
from wsproto.frame_protocol import CloseReason

from shoal.http.server.log_errors import contained
from shoal.http.server.sockets.timeouts import BodyTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import ASGIReceiveEvent

    from shoal.http.server.shared import Shared

_DISCONNECTS = frozenset({"http.disconnect", "websocket.disconnect"})


class Inbox:
    """One application call's ``receive``, and the server's side of it.

    Invariant: after the disconnect, or once the application has returned, `put` never waits and
    drops what it is given.

    Args:
        kind: The scope's type. It determines the disconnect message if the protocol gives none.
        size: How many pieces may wait to be read.

    Attributes:
        kind: As above.
        refused_with: The status of an answer of the server in place of the application; or 0.
        is_over: Whether a disconnect was sent; later messages of the application are dropped.
    """

    __slots__ = (
        "_disconnect",
        "_disconnect_was_read",
        "_from_server",
        "_is_cut_off",
        "_on_left",
        "_take",
        "_timeout",
        "_to_app",
        "is_over",
        "kind",
        "refused_with",
    )

    def __init__(self, kind: Literal["http", "websocket", "lifespan"], size: int) -> None:
        self.kind = kind
        self._to_app, self._from_server = anyio.create_memory_object_stream["ASGIReceiveEvent"](
            size
        )
        self._disconnect: ASGIReceiveEvent = (
            {"type": "websocket.disconnect", "code": CloseReason.ABNORMAL_CLOSURE.value}
            if kind == "websocket"
            else {"type": "http.disconnect"}
        )
        self._disconnect_was_read = False
        self._on_left: Callable[[], object] | None = None
        self._take: Callable[[ASGIReceiveEvent], bool] | None = None
        self._timeout: BodyTimeout | None = None
        self._is_cut_off = False
        self.is_over = False
        self.refused_with = 0

    def await_body(self, shared: Shared, give_up: Callable[[], object]) -> None:
        """Sets what is called if the body does not arrive in time."""
        self._timeout = BodyTimeout(shared.timeouts, shared.body_timeout_s, give_up)

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Sets what is called once when the client leaves, or when the call is cut off.

        It is called at once if either has happened already.
        """
        self._on_left = callback
        if callback is not None and (self.is_over or self._is_cut_off):
            self._on_left = None
            callback()

    def when_received(self, take: Callable[[ASGIReceiveEvent], bool] | None) -> None:
        """Sets what each message of a WebSocket is offered to; one that it refuses is queued."""
        self._take = take

    @property
    def takes_now(self) -> bool:
        """Whether the application takes the messages of its WebSocket in no task of its own."""
        return self._take is not None

    def is_cut_off(self) -> bool:
        """Whether the server ends, and waits a moment for the end of the answer."""
        return self._is_cut_off and not self.is_over

    async def put(self, message: ASGIReceiveEvent) -> None:
        """Passes the application its next message; a disconnect is the last one."""
        if message["type"] in _DISCONNECTS:
            if not self.is_over:  # the first one says why
                self._disconnect = message
            self.disconnect()
            return
        rest = self.put_now(message)
        if rest is not None:
            await rest

    def put_now(self, message: ASGIReceiveEvent) -> Awaitable[None] | None:
        """Passes the application a message that is no disconnect.

        Returns:
            What must be awaited before the next one; None if nothing.
        """
        if self._take is not None and self._take(message):
            return None
        if self._timeout is not None and message["type"] == "http.request":
            self._timeout.received(len(message["body"]), is_last=not message["more_body"])
        try:
            self._to_app.send_nowait(message)
        except anyio.WouldBlock:
            return self._put_once_read(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        return None

    async def _put_once_read(self, message: ASGIReceiveEvent) -> None:
        timeout = self._timeout
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The client can't send meanwhile.
            if timeout is not None:
                timeout.pause()
            await self._to_app.send(message)
            if timeout is not None:
                timeout.resume()

    def disconnect(self) -> None:
        """Tells the application that the client is gone."""
        self.is_over = True
        self._to_app.close()
        if self._timeout is not None:
            self._timeout.close()
        self._call_back()

    def end_early(self) -> bool:
        """Asks the application to end its answer; returns whether it could be asked."""
        self._is_cut_off = True
        return self._call_back()

    async def receive(self) -> ASGIReceiveEvent:
        """Returns the next message; after the last one, the disconnect at each call."""
        # Not a checkpoint if a message is available: Starlette's `Request.is_disconnected` calls it
        # in a cancelled scope, where a checkpoint would always result in "nothing".
        try:
            return self._from_server.receive_nowait()
        except anyio.WouldBlock:
            pass
        except anyio.EndOfStream:
            return await self._repeat_disconnect()
        try:
            return await self._from_server.receive()
        except anyio.EndOfStream:
            return await self._repeat_disconnect()

    async def _repeat_disconnect(self) -> ASGIReceiveEvent:
        # An application that ignores the disconnect and calls `receive` in a loop must not block
        # the event loop.
        if self._disconnect_was_read:
            await anyio.lowlevel.checkpoint()
        self._disconnect_was_read = True
        return self._disconnect

    def close(self) -> None:
        """Closes the channel, once the application has returned."""
        self._take = None
        self._from_server.close()
        self._to_app.close()
        if self._timeout is not None:
            self._timeout.close()

    def _call_back(self) -> bool:
        on_left, self._on_left = self._on_left, None
        if on_left is None:
            return False
        with contained("a callback for the client's leaving failed"):
            on_left()
        return True
