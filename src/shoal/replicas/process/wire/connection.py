"""One end of a socket pair in an event loop: frames out in order and whole, frames in as they come.

Sending is a plain call that never waits. What the socket takes at once, as nearly always, is gone
when the call returns; the rest goes out by a task beside. So no sender can be cancelled in the
middle of a frame, which would leave the other end with half of one, and none hangs on a worker that
does not read.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from shoal.replicas.process.wire.frames import FrameReader, rest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replicas.process.wire.frames import Buffer, Frame

_MOST_PARTS: Final = 512
_MOST_AT_ONCE: Final = 8
"""How often a socket is read before other tasks have their turns."""


class FrameConnection:
    """Sends and receives frames.

    Attributes:
        is_closed: Whether the other end is gone, or this one was closed.

    Args:
        sock: The socket; it is closed with the connection.
        reader: What has taken in bytes of this socket already, if anything has.
        on_rubbish: Called when something comes that is no frame; nothing is read after it.
    """

    def __init__(
        self,
        sock: socket.socket,
        reader: FrameReader | None = None,
        on_rubbish: Callable[[], object] = lambda: None,
    ) -> None:
        sock.setblocking(False)
        self.is_closed = False
        self._socket = sock
        self._reader = reader or FrameReader()
        self._on_rubbish = on_rubbish
        # Frames that are not wholly sent, as what is left of them.
        self._waiting: deque[list[Buffer]] = deque()
        self._has_some = anyio.Event()

    def send(self, frame: list[Buffer]) -> None:
        """Sends a frame, now or as soon as the other end takes it.

        Args:
            frame: Its parts; they must not change.
        """
        if self.is_closed:
            return
        self._waiting.append(frame)
        if len(self._waiting) == 1:
            self._send_some()
            if self._waiting:
                self._has_some.set()

    async def write(self) -> None:
        """Sends what could not be sent at once, for as long as the connection lives."""
        while not self.is_closed:
            await self._has_some.wait()
            self._has_some = anyio.Event()
            while self._waiting and not self.is_closed:
                await anyio.wait_writable(self._socket)
                self._send_some()

    async def read(self, handle: Callable[[Frame], object]) -> None:
        """Gives each frame that comes to a function, until the other end is gone."""
        while not self.is_closed:
            await self.read_once(handle)

    async def read_once(self, handle: Callable[[Frame], object]) -> None:
        """Waits until something comes, and gives each frame that has come whole to a function."""
        await anyio.wait_readable(self._socket)
        self.read_at_hand(handle, _MOST_AT_ONCE)

    def read_at_hand(self, handle: Callable[[Frame], object], most: int | None = None) -> None:
        """Gives each frame that has come to a function, without waiting for more.

        Args:
            handle: What takes them.
            most: How often to read; None for as long as there is something.
        """
        reader = self._reader
        while not self.is_closed and most != 0:
            space = reader.space()
            try:
                count = self._socket.recv_into(space)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self.is_closed = True
                return
            reader.came(count)
            while (frame := self._next()) is not None:
                handle(frame)
            if count < len(space):
                return
            most = None if most is None else most - 1

    def _next(self) -> Frame | None:
        if self.is_closed:
            return None
        try:
            return self._reader.next()
        except Exception:  # no such kind, or a size that no memory has
            self.is_closed = True
            self._on_rubbish()
            return None

    def shut_down(self) -> None:
        """Wakes the task that waits for something to come: nothing will."""
        self.is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket, which no task may be waiting for any more. Idempotent."""
        self.is_closed = True
        self._waiting.clear()
        self._socket.close()

    def _send_some(self) -> None:
        while self._waiting:
            parts = self._waiting[0]
            try:
                count = self._socket.sendmsg(parts[:_MOST_PARTS])
            except BlockingIOError:
                return
            except OSError:
                # The other end is gone. What it has sent before that can still be read.
                self._waiting.clear()
                return
            rest = rest_of(parts, count)
            if rest:
                self._waiting[0] = rest
            else:
                self._waiting.popleft()
