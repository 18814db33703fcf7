"""The messages for one call of the application: pieces of the body, then one disconnect.

Stock Hypercorn passes everything through one bounded channel, including the disconnect message. An
application that answers without reading its body (an early 413) leaves that channel full, and the
task that sends the disconnect waits for ever, with the connection and the task that closed it. Here
only the pieces of the body are bounded. The disconnect closes the channel, which needs no space in
it and no checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
from wsproto.frame_protocol import CloseReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import ASGIReceiveEvent

_DISCONNECTS = frozenset({"http.disconnect", "websocket.disconnect"})


class Inbox:
    """One application call's ``receive``, and the server's side of it.

    Invariant: after the disconnect, or once the application has returned, `put` never waits and
    drops what it is given.

    Args:
        kind: The scope's type. It determines the disconnect message if the protocol gives none.
        size: How many pieces may wait to be read.
        ask: Asks the client for its body when the application first waits for it; None if the
            client sends it unasked.

    Attributes:
        is_over: Whether a disconnect was sent; later messages of the application are dropped.
    """

    __slots__ = (
        "_ask",
        "_disconnect",
        "_disconnect_was_read",
        "_from_server",
        "_to_app",
        "is_over",
    )

    def __init__(
        self,
        kind: Literal["http", "websocket", "lifespan"],
        size: int,
        ask: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._ask = ask
        self._to_app, self._from_server = anyio.create_memory_object_stream["ASGIReceiveEvent"](
            size
        )
        self._disconnect: ASGIReceiveEvent = (
            {"type": "websocket.disconnect", "code": CloseReason.ABNORMAL_CLOSURE.value}
            if kind == "websocket"
            else {"type": "http.disconnect"}
        )
        self._disconnect_was_read = False
        self.is_over = False

    async def put(self, message: ASGIReceiveEvent) -> None:
        """Passes the application its next message; a disconnect is the last one."""
        if message["type"] in _DISCONNECTS:
            self._disconnect = message
            self.disconnect()
            return
        try:
            self._to_app.send_nowait(message)
        except anyio.WouldBlock:
            try:
                await self._to_app.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    def disconnect(self) -> None:
        """Tells the application that the client is gone."""
        self.is_over = True
        self._to_app.close()

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
        ask, self._ask = self._ask, None
        if ask is not None:
            await ask()
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
        self._from_server.close()
        self._to_app.close()
