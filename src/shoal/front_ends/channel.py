"""One end of the channel between a front end and the server's process.

What is posted in one pass of the event loop is sent together: the answers of a batch come at once,
and a call of the kernel for each would cost more than all the rest of it. Messages that are small
share a frame, since to read a frame costs ten times as much as to read a message within it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.front_ends.wire import FrontKind
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.messages import Message, MessageCodec

if TYPE_CHECKING:
    import socket

    from shoal.replicas.process.wire.frames import Frame, FrameReader
    from shoal.replicas.process.wire.shared_memory import Region

_LEAST_BESIDE: Final = 2**14
"""Larger messages have a frame of their own, and go through the shared memory."""
_MOST_TOGETHER: Final = 2**17
"""How large a frame of small messages may become, in bytes."""
_MESSAGE: Final = struct.Struct("<BIQ")  # the kind, the size, the id
_KINDS: Final = {int(kind): kind for kind in FrontKind}

Handler = Callable[[FrontKind, int, bytes, bytes], object]
"""Takes the kind of a message, its id, and its body; of a large one that was posted in two parts,
the first part and the rest, which would have to be copied to join them."""


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
        self._incoming = incoming
        self._parking = parking_of_this_loop()
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._waiter: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether the other end is gone, or this one was closed."""
        return self._connection.is_closed

    def post(self, kind: FrontKind, id_: int = 0, body: bytes = b"", data: bytes = b"") -> None:
        """Sends a message, soon.

        Args:
            kind: Its kind.
            id_: Its id.
            body: The beginning of its body.
            data: The rest of it, which may be large.
        """
        size = len(body) + len(data)
        if size >= _LEAST_BESIDE:
            self._send_small()
            self._send_large(kind, id_, body, data)
            return
        small = self._small
        small.append(_MESSAGE.pack(kind, size, id_))
        small.append(body)
        if data:
            small.append(data)
        self._small_bytes += size
        if self._small_bytes > _MOST_TOGETHER:
            self._send_small()
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            self._parking.wake(waiter)

    async def run(self, handle: Handler) -> None:
        """Passes each received message to a function, until the other end is gone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flush_when_posted)
            tasks.start_soon(self._connection.write)
            await self._connection.read_in_task(partial(self._take, handle))
            tasks.cancel_scope.cancel()

    def flush(self) -> None:
        """Sends all that was posted, now or as soon as the socket takes it."""
        self._send_small()

    def _send_small(self) -> None:
        if self._small:
            body = b"".join(self._small)
            self._small = []
            self._small_bytes = 0
            self._connection.send(self._codec.frame(FrontKind.SMALL, 0, Message([body])))

    def _send_large(self, kind: FrontKind, id_: int, body: bytes, data: bytes) -> None:
        if not data:
            body, data = b"", body
        message = Message([body], [data], [len(data)])
        if self._codec.reserve(message):
            self._codec.write(message)
        self._connection.send(self._codec.frame(kind, id_, message))

    def shut_down(self) -> None:
        """Ends `run`."""
        self._connection.shut_down()

    def close(self) -> None:
        """Closes the socket and frees the shared memory, once `run` has ended."""
        self._connection.close()
        # Each end refers to the other's objects, so the garbage collector would find it only later.
        self._codec = MessageCodec(None, None)
        self._incoming = None

    async def _flush_when_posted(self) -> None:
        while True:
            if not self._small:
                self._waiter = self._parking.new_waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            self.flush()

    def _take(self, handle: Handler, frame: Frame[FrontKind]) -> None:
        self._codec.take_back(frame)
        body = bytes(frame.body)
        if frame.kind is not FrontKind.SMALL:
            [data] = frame.buffers
            if isinstance(data, tuple):
                assert self._incoming is not None
                data = self._incoming.as_bytes(data)
            data = bytes(data)
            frame.buffers.clear()
            handle(frame.kind, frame.id, body or data, data if body else b"")
            return
        at, end = 0, len(body)
        while at < end:
            kind, size, id_ = _MESSAGE.unpack_from(body, at)
            start = at + _MESSAGE.size
            at = start + size
            handle(_KINDS[kind], id_, body[start:at], b"")
