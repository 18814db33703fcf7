"""One end of the channel between a front end and the server's process.

What is posted in one pass of the event loop is sent together: the answers of a batch come at once,
and a call of the kernel for each would cost more than all the rest of it.
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
    """Sends messages, and receives them.

    Attributes:
        is_closed: Whether the other end is gone.

    Args:
        sock: The socket; it is closed with the channel.
        reader: What has read from the socket already.
        outgoing: The shared memory that this end writes; None for none.
        incoming: The shared memory that this end reads; None for none.
        on_invalid_frame: Called with the error if the other end sends what is no frame.
    """

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
        self._size = 0  # of what was posted
        self._waiter: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether the other end is gone, or this one was closed."""
        return self._connection.is_closed

    def post(self, name: str, id_: int = 0, content: object = None, size: int = 0) -> None:
        """Sends a message, soon.

        Args:
            name: Its name.
            id_: The id of its request.
            content: Its content, which must not change. It consists of builtin types only: what
                can't be pickled would prevent all others from being sent.
            size: About how large that is, in bytes, if it may be large.
        """
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
        """Sends all that was posted, now or as soon as the socket takes it."""
        if not self._posted:
            return
        # A large pickle is made in pieces, so that large bodies are copied to the memory only.
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
        # Each end refers to the other's objects, so the garbage collector would find it only later.
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
