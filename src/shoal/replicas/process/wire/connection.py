"""One end of a socket pair in an event loop: sends whole frames in order, and receives frames.

Sending is a plain call that never waits. The socket nearly always takes the frame at once; a
separate task writes the rest. A cancelled sender can't leave the other end with half a frame, and
no sender blocks on a worker that does not read.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.frames import (
    STEPS_AHEAD,
    Buffer,
    Frame,
    FrameReader,
    rest_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_PARTS: Final = 512
# How often a socket is read before other tasks run.
_MOST_AT_ONCE: Final = 8


class _Closed(Exception):
    """Ends the reading of a connection that is closed."""


class FrameConnection:
    """Sends and receives frames over `sock`; a given `reader` already has bytes of it."""

    def __init__(
        self,
        sock: socket.socket,
        reader: FrameReader | None = None,
        on_invalid_frame: Callable[[Exception], object] | None = None,
    ) -> None:
        sock.setblocking(False)
        # How many bytes TLS has decrypted that nobody has read; a poll does not report them.
        self._pending: Callable[[], int] = getattr(sock, "pending", _none)
        # Whether the other end is gone, or this one was closed.
        self.is_closed = False
        # Why the other end is gone, if it did not close the connection.
        self.failure: str | None = None
        self.sent_bytes = 0
        self._socket = sock
        self._reader = reader or FrameReader()
        # Called with the error when the input is not a frame or can't be handled; nothing is read
        # afterwards. None to raise the error.
        self._on_invalid_frame = on_invalid_frame
        # Ends what `begin_reading` began; must be called before the socket is closed, or the event
        # loop would watch a number that the next file may get.
        self._end_reading: Callable[[], object] = _nothing
        # The unsent parts of frames, and whether the socket takes no more of them now.
        self._unsent: list[Buffer] = []
        self._is_full = False
        self._has_some = anyio.Event()

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of frames the other end has not taken yet."""
        return sum([memoryview(part).nbytes for part in self._unsent])

    @property
    def received_bytes(self) -> int:
        return self._reader.total

    def send(self, frame: list[Buffer]) -> None:
        """Sends a frame, at once or when the socket takes it. Its parts must not change."""
        if self.is_closed:
            return
        self._unsent += frame
        if not self._is_full:
            self._send_some()

    def send_soon(self, frame: list[Buffer]) -> None:
        """Sends a frame in the event loop's next pass, together with others."""
        self._unsent += frame
        self._has_some.set()

    async def write(self) -> None:
        """Sends frames that were not sent at once, until the connection is closed."""
        while not self.is_closed:
            await self._has_some.wait()
            self._has_some = anyio.Event()
            while self._unsent and not self.is_closed:
                if self._is_full:
                    await anyio.wait_writable(self._socket)
                self._send_some()

    async def read_by_loop(self, handle: Callable[[Frame], object]) -> None:
        """Passes each received frame to a function, until the other end is gone."""
        # Outside of tasks if the event loop can.
        closed = anyio.Event()
        if not self.begin_reading(handle, closed.set):
            await self.read_in_task(handle)
            return
        try:
            await closed.wait()
        finally:
            self._end_reading()

    async def read_in_task(self, handle: Callable[[Frame], object]) -> None:
        """Like `read_by_loop`, in a task."""

        def read() -> None:
            self.read_available(handle, _MOST_AT_ONCE)
            if self.is_closed:
                raise _Closed

        with suppress(_Closed):
            await parking_of_this_loop().watch_readable(self._socket.fileno(), read)

    def begin_reading(
        self, handle: Callable[[Frame], object], on_closed: Callable[[], object]
    ) -> bool:
        """Lets the event loop read, outside of tasks; returns whether it can."""

        def read() -> None:
            try:
                self.read_available(handle, _MOST_AT_ONCE)
            finally:
                if self.is_closed:
                    self._end_reading()
                    on_closed()

        # `on_closed` is called when the loop stops reading: the other end is gone, or has sent an
        # invalid frame.
        end_reading = parking_of_this_loop().call_when_readable(self._socket.fileno(), read)
        if end_reading is None:
            return False
        self._end_reading = end_reading
        return True

    async def read_once(self, handle: Callable[[Frame], object]) -> None:
        await anyio.wait_readable(self._socket)
        self.read_available(handle, _MOST_AT_ONCE)

    def read_available(self, handle: Callable[[Frame], object], most: int | None = None) -> None:
        """Passes frames that were already received to a function, without waiting."""
        reader = self._reader
        while not self.is_closed:
            space = reader.space()
            if most == 0:
                space = space[: self._pending()]
                if not space:
                    return
            try:
                count = self._socket.recv_into(space)
            except BlockingIOError:
                return
            except OSError as error:
                self._note(error)
                count = 0
            if count == 0:
                self.is_closed = True
                return
            reader.received(count)
            try:
                while (frame := reader.next()) is not None:
                    handle(frame)
            except Exception as error:  # for example a size that can't be allocated
                self.is_closed = True
                if self._on_invalid_frame is None:
                    raise
                self._on_invalid_frame(error)
            if count < len(space):
                return
            most = None if most is None else max(0, most - 1)

    def shut_down(self) -> None:
        """Ends reading, and wakes the task that waits for input."""
        self.is_closed = True
        self._end_reading()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket; no task may still wait for it. Idempotent."""
        self.is_closed = True
        self._end_reading()
        self._end_reading = _nothing  # breaks a reference cycle
        self._unsent.clear()
        self._reader.close()
        self._socket.close()

    def _note(self, error: OSError) -> None:
        if not isinstance(error, ConnectionError):  # such as a time-out
            self.failure = self.failure or error.strerror or str(error)

    def _send_some(self) -> None:
        self._is_full = False
        while self._unsent:
            try:
                count = self._socket.sendmsg(self._unsent[:_MOST_PARTS])
            except BlockingIOError:
                self._is_full = True
                self._has_some.set()
                return
            except OSError as error:
                # The other end is gone. What it sent before can still be read.
                self._note(error)
                self._unsent.clear()
                return
            self.sent_bytes += count
            self._unsent = rest_of(self._unsent, count)


class AnsweredCall:
    """A call under way, where it is answered; the reader of its steps has room for a few."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self._credit = STEPS_AHEAD
        self._has_credit = anyio.Event()

    def add_credit(self, steps: int) -> None:
        self._credit += steps
        self._has_credit.set()

    async def sent_step(self) -> None:
        """Waits until the reader has room for another step."""
        self._credit -= 1
        while self._credit <= 0:
            self._has_credit = anyio.Event()
            await self._has_credit.wait()


def _nothing() -> None:
    pass


def _none() -> int:
    return 0
