"""What a process replica and its parent say to each other: frames, and how they are taken apart.

A frame is a header, a table of the buffers that belong to it, a pickle, and those buffers that do
not lie in shared memory, one after another. A `FrameReader` reads nothing: it says where the next
bytes should go and is told how many came. So the same code serves a non-blocking socket in an event
loop and the blocking one in the worker, which `receive` and `send` read and write.

Both ends are Shoal's own and of one user, joined by a socket pair that nobody else can reach. That
is why pickles may travel here; they never come from anywhere else.
"""

from __future__ import annotations

import mmap
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Sequence

_LARGE: Final = 2**21
"""From this size on memory is asked for in large pages, whose first use costs a quarter."""


def fresh_memory(size: int) -> memoryview:
    """Returns memory that nothing else uses; it is given back when nothing refers to it."""
    if size < _LARGE or sys.platform != "linux":
        return memoryview(bytearray(size))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the kernel has no large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


PROTOCOL: Final = 2
"""The version of all that the two ends must agree on; neither end speaks another one."""

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct("<BBxxIQQ")  # kind, blocks given back, buffers, id, bytes of pickle
_NUMBER: Final = struct.Struct("<Q")
_PLACE: Final = struct.Struct("<QQ")
_INLINE: Final = 2**64 - 1
_CHUNK: Final = 2**16
_JOINED: Final = 2**14
"""A pickle of up to this size is copied behind its header, which costs less than a second part."""

STEPS_AHEAD: Final = 4
"""How many steps of a stream the worker makes before its reader has taken one."""

MOST_GIVEN_BACK: Final = 255
"""How many blocks one frame can give back."""


class Kind(IntEnum):
    """What a frame says."""

    # Parent to child, by the data channel:
    START = 1
    """Load the code, and get ready."""
    RUN = 2
    STREAM = 3
    RECONFIGURE = 4
    CREDIT = 5
    """A stream's reader has taken steps, so that more may be made."""
    CLOSE = 6
    """Close the code, and exit."""
    # By both channels, from the parent; by the control channel, from the child:
    CANCEL = 7
    """The call is not wanted any more."""
    # Parent to child, by the control channel:
    PING = 8
    HEALTH = 9
    DRAIN = 18
    """The backend begins to end: say so to code that asks."""
    # Child to parent:
    RESULT = 10
    """The answer of a call; the last frame of it."""
    PART = 11
    """A step of a stream."""
    ERROR = 12
    """The call has failed; the last frame of it."""
    END = 13
    """There is nothing more to come: of a stream, or of a call that was cancelled."""
    # Calls that the code makes to other backends, by the control channel:
    CALL_OUT = 14
    CALL_OUT_STREAM = 15


@dataclass(slots=True)
class Frame:
    """One frame, as it came.

    Attributes:
        kind: What it says.
        id: Which call it belongs to.
        body: The pickle.
        buffers: The pickle's buffers: bytes where they came with the frame, else the place in
            shared memory, as offset and length.
        given_back: Blocks of shared memory that the sender is done with.
    """

    kind: Kind
    id: int
    body: Buffer
    buffers: list[Buffer | tuple[int, int]]
    given_back: Sequence[int]


def encoded(
    kind: Kind,
    id_: int,
    body: bytes = b"",
    buffers: Sequence[Buffer] = (),
    places: Sequence[tuple[int, int]] = (),
    given_back: Sequence[int] = (),
) -> list[Buffer]:
    """Makes a frame.

    Args:
        kind: What it says.
        id_: Which call it belongs to.
        body: The pickle.
        buffers: The buffers that the pickle refers to, if they are to travel with the frame.
        places: Else, where these lie in shared memory: offset and length.
        given_back: Blocks of shared memory that the sender is done with; `MOST_GIVEN_BACK` at most.

    Returns:
        The parts to send, in order.
    """
    places = places or [(_INLINE, memoryview(buffer).nbytes) for buffer in buffers]
    head = [
        _HEADER.pack(kind, len(given_back), len(places), id_, len(body)),
        *map(_NUMBER.pack, given_back),
        *(_PLACE.pack(offset, length) for offset, length in places),
    ]
    if len(body) <= _JOINED:
        return [b"".join((*head, body)), *buffers]
    return [b"".join(head), body, *buffers]


class FrameReader:
    """Takes apart what comes from a socket, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._chunk = memoryview(bytearray(_CHUNK))
        # Of the chunk, what has come and is not taken yet.
        self._start = self._end = 0
        # Where the bytes go that are part of something large, while the chunk is empty.
        self._target: memoryview | None = None
        self._filled = 0
        self._frames = self._parse()

    def space(self) -> memoryview:
        """Returns where the next bytes should go; it is never empty."""
        if self._target is not None:
            return self._target[self._filled :]
        if self._start:
            rest = bytes(self._chunk[self._start : self._end])
            self._chunk[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._chunk[self._end :]

    def came(self, count: int) -> None:
        """Says how many bytes have come into the `space`."""
        if self._target is not None:
            self._filled += count
        else:
            self._end += count

    def next(self) -> Frame | None:
        """Returns the next frame; None if more bytes must come first."""
        return next(self._frames)

    def _parse(self) -> Generator[Frame | None]:
        while True:
            while self._end - self._start < _HEADER.size:
                yield None
            kind, given_back, count, id_, size = _HEADER.unpack_from(self._chunk, self._start)
            self._start += _HEADER.size
            numbers: list[int] = []
            if given_back or count:
                head = yield from self._take(given_back * _NUMBER.size + count * _PLACE.size)
                numbers = [number for (number,) in _NUMBER.iter_unpack(head)]
            body = yield from self._take(size)
            buffers: list[Any] = []
            for nth in range(given_back, len(numbers), 2):
                place, length = numbers[nth : nth + 2]
                if place == _INLINE:
                    buffers.append((yield from self._take_writable(length)))
                else:
                    buffers.append((place, length))
            yield Frame(Kind(kind), id_, body, buffers, numbers[:given_back])

    def _take(self, count: int) -> Generator[None, None, Buffer]:
        """Returns the next bytes, which need not be writable."""
        if count <= self._end - self._start:
            self._start += count
            return bytes(self._chunk[self._start - count : self._start])
        return (yield from self._take_writable(count))

    def _take_writable(self, count: int) -> Generator[None, None, memoryview]:
        """Returns the next bytes, in memory of their own."""
        taken = fresh_memory(count)
        at_hand = min(count, self._end - self._start)
        taken[:at_hand] = self._chunk[self._start : self._start + at_hand]
        self._start += at_hand
        if at_hand < count:
            # The chunk is empty, so what comes can go to its place without a copy.
            self._target, self._filled = taken, at_hand
            while self._filled < count:
                yield None
            self._target = None
        return taken


def rest_of(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """Returns what is left to send of a frame, after so many bytes of it."""
    for nth, part in enumerate(parts):
        length = memoryview(part).nbytes
        if sent < length:
            return [memoryview(part)[sent:], *parts[nth + 1 :]]
        sent -= length
    return []


_MOST_PARTS: Final = 512


def send(sock: socket.socket, parts: list[Buffer]) -> None:
    """Sends a frame.

    Raises:
        OSError: The other end is gone.
    """
    while parts:
        parts = rest_of(parts, sock.sendmsg(parts[:_MOST_PARTS]))


def receive(sock: socket.socket, reader: FrameReader) -> Frame | None:
    """Waits for a frame, and returns it; None when the other end is gone."""
    while (frame := reader.next()) is None:
        try:
            count = sock.recv_into(reader.space())
        except OSError:
            count = 0
        if count == 0:
            return None
        reader.came(count)
    return frame
