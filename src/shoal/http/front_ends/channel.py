"""One end of the channel between a front end and the server's process.

Frames that are posted in one pass of the event loop are sent together: the answers of a batch come
at once, and a call of the kernel for each would cost more than all the rest of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.http.front_ends.wire import FrontKind
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.messages import Message, MessageCodec

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from shoal.replicas.process.wire.frames import Buffer, Frame, FrameReader
    from shoal.replicas.process.wire.shared_memory import Region

_LEAST_BESIDE: Final = 2**14
"""Larger bodies go through the shared memory."""
_JOINED: Final = 2**14


class Channel:
    """Sends frames, and receives them.

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
        self._incoming = incoming
        self._parking = parking_of_this_loop()
        self._posted: list[list[Buffer]] = []
        self._waiter: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether the other end is gone, or this one was closed."""
        return self._connection.is_closed

    def post(self, kind: FrontKind, id_: int = 0, body: bytes = b"", data: bytes = b"") -> None:
        """Sends a frame, soon.

        Args:
            kind: Its kind.
            id_: Its id.
            body: Its beginning.
            data: What follows; it may be large.
        """
        if len(data) < _LEAST_BESIDE:
            message = Message(body + data if data else body)
        else:
            message = Message(body, [data], len(data))
            if self._codec.reserve(message):
                self._codec.write(message)
        self._posted.append(self._codec.frame(kind, id_, message))
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            self._parking.wake(waiter)

    async def run(self, handle: Callable[[Frame[FrontKind]], object]) -> None:
        """Passes each received frame to a function, until the other end is gone.

        Large data is appended to the body of its frame.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flush_when_posted)
            tasks.start_soon(self._connection.write)
            await self._connection.read_in_task(partial(self._take, handle))
            tasks.cancel_scope.cancel()

    def flush(self) -> None:
        """Sends all that was posted, now or as soon as the socket takes it."""
        posted, self._posted = self._posted, []
        parts: list[Buffer] = []
        small: list[Buffer] = []
        for frame in posted:
            for part in frame:
                if len(part) < _JOINED:
                    small.append(part)
                    continue
                if small:
                    parts.append(b"".join(small))
                    small = []
                parts.append(part)
        if small:
            parts.append(b"".join(small))
        if parts:
            self._connection.send(parts)

    def shut_down(self) -> None:
        """Ends `run`."""
        self._connection.shut_down()

    def close(self) -> None:
        """Closes the socket, once `run` has ended."""
        self._connection.close()

    async def _flush_when_posted(self) -> None:
        while True:
            if not self._posted:
                self._waiter = self._parking.new_waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            self.flush()

    def _take(
        self, handle: Callable[[Frame[FrontKind]], object], frame: Frame[FrontKind]
    ) -> None:
        self._codec.take_back(frame)
        if frame.buffers:
            [data] = frame.buffers
            if isinstance(data, tuple):
                assert self._incoming is not None
                data = self._incoming.as_bytes(data)
            frame.body = b"".join((frame.body, data)) if frame.body else bytes(data)
        handle(frame)
