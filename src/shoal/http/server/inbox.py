"""What the server has for one call of the application: the body's pieces, then one goodbye.

Stock Hypercorn passes everything through one bounded channel, the goodbye included. An application
that answers without reading its body (an early 413) leaves that channel full, and the task that
says goodbye waits for ever, with the connection and whoever closed it. Here only the pieces wait
for room; the goodbye closes the channel, which takes no room, no time and no checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
from wsproto.frame_protocol import CloseReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import ASGIReceiveEvent

_GOODBYES = frozenset({"http.disconnect", "websocket.disconnect"})


class Inbox:
    """One application call's ``receive``, and the server's way to fill it.

    Invariant: after the goodbye, or once the application has returned, `put` never waits and drops
    what it is given.

    Args:
        kind: The scope's type, which says what the goodbye is unless the protocol knows better.
        size: How many pieces may wait to be read.
        ask: Asks the client for its body, when the application first waits for it; None for a
            client that needs no asking.

    Attributes:
        is_over: Whether the goodbye was said: what the application sends from here on is dropped.
    """

    __slots__ = ("_ask", "_from_server", "_goodbye", "_goodbye_was_read", "_to_app", "is_over")

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
        self._goodbye: ASGIReceiveEvent = (
            {"type": "websocket.disconnect", "code": CloseReason.ABNORMAL_CLOSURE.value}
            if kind == "websocket"
            else {"type": "http.disconnect"}
        )
        self._goodbye_was_read = False
        self.is_over = False

    async def put(self, message: ASGIReceiveEvent) -> None:
        """Hand the application its next message; a goodbye is its last."""
        if message["type"] in _GOODBYES:
            self._goodbye = message
            self.say_goodbye()
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

    def say_goodbye(self) -> None:
        """Nothing more will come."""
        self.is_over = True
        self._to_app.close()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; after the last one the goodbye, as often as it is asked for."""
        # Not a checkpoint when something is there: Starlette's `Request.is_disconnected` asks from
        # inside a cancelled scope, where a checkpoint would always answer "nothing".
        try:
            return self._from_server.receive_nowait()
        except anyio.WouldBlock:
            pass
        except anyio.EndOfStream:
            return await self._repeat_goodbye()
        ask, self._ask = self._ask, None
        if ask is not None:
            await ask()
        try:
            return await self._from_server.receive()
        except anyio.EndOfStream:
            return await self._repeat_goodbye()

    async def _repeat_goodbye(self) -> ASGIReceiveEvent:
        # An application that ignores the goodbye and asks again, in a loop, must not stop the rest.
        if self._goodbye_was_read:
            await anyio.lowlevel.checkpoint()
        self._goodbye_was_read = True
        return self._goodbye

    def close(self) -> None:
        """The application has returned: nobody reads here any more."""
        self._from_server.close()
        self._to_app.close()
