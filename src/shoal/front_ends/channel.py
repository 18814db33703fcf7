"""One end of the channel between a front end and the server's process.

Messages posted in one pass of the event loop are sent together. The responses of a batch are posted
at once, and a system call for each would cost more than the rest of a response.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.front_ends.wire import FrontKind, PassedMessage
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.messages import Message, MessageCodec, packed

if TYPE_CHECKING:
    import socket

    from shoal.replicas.process.wire.frames import Frame, FrameReader
    from shoal.replicas.process.wire.shared_memory import Region

_LEAST_SHARED: Final = 2**16
"""From this size on, messages go through the shared memory."""
_MOST_TOGETHER: Final = 2**17
"""From this size on, messages are sent without waiting for others."""

Handler = Callable[[list[PassedMessage]], object]


class Channel:
    """Sends messages, and receives them. It owns its socket."""

    def __init__(
        self,
        sock: socket.socket,
        reader: FrameReader[FrontKind],
        outgoing: Region | None,
        incoming: Region | None,
        on_invalid_frame: Callable[[Exception], object],
    ) -> None:
        self._connection = FrameConnection[FrontKind](sock, reader, on_invalid_frame)
        self._codec = MessageCodec(outgoing, incoming)
        self._parking = parking_of_this_loop()
        self._posted: list[PassedMessage] = []
        self._size = 0  # of the posted messages, in bytes
        self._waiter: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether the other end is gone, or this end was closed."""
        return self._connection.is_closed

    def post(self, name: str, id_: int = 0, content: object = None, size: int = 0) -> None:
        """Sends a message soon; a content that can't be pickled would block all others."""
        self._posted.append((name, id_, content))
        self._size += size
        if self._size >= _MOST_TOGETHER:
            self.flush()
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            self._parking.wake(waiter)

    async def run(self, handle: Handler) -> None:
        """Passes the received messages to a function, until the other end is gone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flush_when_posted)
            tasks.start_soon(self._connection.write)
            await self._connection.read_in_task(partial(self._take, handle))
            tasks.cancel_scope.cancel()

    def flush(self) -> None:
        """Sends all posted messages, now or as soon as the socket takes them."""
        if not self._posted:
            return
        # A large pickle is made in pieces, so that large bodies are copied only to the memory.
        is_large = self._size >= _LEAST_SHARED
        message = packed(self._posted) if is_large else Message([dumps(self._posted, 5)])
        self._posted = []
        self._size = 0
        if self._codec.reserve(message):
            self._codec.write(message)
        self._connection.send(self._codec.frame(FrontKind.MESSAGES, 0, message))

    def shut_down(self) -> None:
        """Ends `run`."""
        self._connection.shut_down()

    def close(self) -> None:
        """Closes the socket and frees the shared memory, once `run` has ended."""
        self._connection.close()
        # Each end refers to the other's objects; without this they would stay until a collection.
        self._codec = MessageCodec(None, None)

    async def _flush_when_posted(self) -> None:
        while True:
            if not self._posted:
                self._waiter = self._parking.new_waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            self.flush()

    def _take(self, handle: Handler, frame: Frame[FrontKind]) -> None:
        self._codec.take_back(frame)
        handle(self._codec.opened_here(frame))
