"""The frames between a process replica and its parent: encoding and decoding.

A frame has a header, a table of its buffers, and then the pickle and the buffers that are not in
shared memory. A `FrameReader` does no I/O: it returns the memory for the next bytes, and gets the
number of received bytes. The same code thus serves a non-blocking socket in an event loop, and the
blocking socket in the worker, which `receive` and `send` use.

Both ends are Shoal's own and run as one user, connected by a socket pair that no other process can
reach. Unpickling is therefore safe. Between machines, model servers (`shoal.replicas.remote`) and
Ray's actors use these frames as well, once both ends have proved that they know a token. A reader
of a model server has a limit.
"""

from __future__ import annotations

import mmap
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Sequence

# The version of the protocol; both ends must have the same one.
PROTOCOL: Final = 11
Buffer: TypeAlias = bytes | bytearray | memoryview
# Kind, blocks given back, whether the last place is the pickle's, places, id, bytes of pickle.
_HEADER: Final = struct.Struct("<BB?xIQQ")
_NUMBER: Final = struct.Struct("<Q")
_PLACE: Final = struct.Struct("<QQ")
_INLINE: Final = 2**64 - 1
_CHUNK: Final = 2**16
# A pickle up to this size is appended to its header, which is cheaper than a second part.
_JOINED: Final = 2**14
# How many steps of a stream the worker sends before its reader has taken one.
STEPS_AHEAD: Final = 4
# How many blocks of shared memory one frame can give back.
MOST_GIVEN_BACK: Final = 255
_MOST_PARTS: Final = 512
# How many buffers a frame from another machine may have.
_MOST_BUFFERS: Final = 2**16

# From this size on, memory uses huge pages, whose first use costs a quarter as much.
_LARGE: Final = 2**21


def fresh_memory(size: int) -> memoryview:
    """Returns new memory, which is freed when nothing refers to it."""
    if size < _LARGE or sys.platform != "linux":
        return memoryview(bytearray(size))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the kernel has no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class FrameKind(IntEnum):
    # Parent to child, over the data channel:
    # Load the code and get ready.
    START = 1
    RUN = 2
    STREAM = 3
    RECONFIGURE = 4
    # Run code on an open batch; then what happens to the batch: requests join, callers leave.
    OPEN = 15
    NEWS = 16
    # A stream's reader has taken steps, so that more may be made.
    CREDIT = 5
    # Close the code and exit.
    CLOSE = 6
    # Parent to child, over both channels; child to parent, over the control channel:
    # Cancel the call.
    CANCEL = 7
    # Parent to child, over the control channel. Servers have one channel, and both send pings,
    # which have no answer there. A model server sends a drain to the server in front of it.
    PING = 8
    HEALTH = 9
    # The backend, or the model server, is shutting down.
    DRAIN = 18
    # Child to parent:
    # The answer of a call; its last frame.
    RESULT = 10
    # A step of a stream.
    PART = 11
    # What the code did with the requests of an open batch.
    ANSWERS = 17
    # The call has failed; its last frame.
    ERROR = 12
    # The end of a stream, or of a cancelled call; its last frame.
    END = 13
    # Calls of the code to endpoints, child to parent, over the control channel:
    CALL_OUT = 14
    # A pickled list of the messages between a front end and the server's process.
    MESSAGES = 19


@dataclass(slots=True)
class Frame:
    kind: FrameKind
    id: int
    body: Buffer
    # The place of the pickle in shared memory, as offset and length, if it is not in `body`.
    place: tuple[int, int] | None
    # The buffers of the pickle: bytes, or their places in shared memory.
    buffers: list[Buffer | tuple[int, int]]
    given_back: Sequence[int]


def encoded(
    kind: FrameKind,
    id_: int,
    parts: Sequence[Buffer] = (),
    buffers: Sequence[Buffer] = (),
    places: Sequence[tuple[int, int]] = (),
    given_back: Sequence[int] = (),
) -> list[Buffer]:
    # Without `parts`, the last of the `places` is the pickle's.
    if buffers and not places:
        places = [(_INLINE, memoryview(buffer).nbytes) for buffer in buffers]
    size = sum(map(len, parts))
    head = _HEADER.pack(kind, len(given_back), bool(places) and not parts, len(places), id_, size)
    if given_back or places:
        numbers = [*given_back, *chain.from_iterable(places)]
        head += struct.pack(f"<{len(numbers)}Q", *numbers)
    if size <= _JOINED:
        return [b"".join((head, *parts)), *buffers]
    return [head, *parts, *buffers]


class FrameReader:
    """Decodes frames from the bytes of a socket, however they are split."""

    def __init__(self, most_bytes: int | None = None) -> None:
        # The largest frame from another machine, with which no memory is shared; None for no limit.
        self._most_bytes = most_bytes
        self._chunk = memoryview(bytearray(_CHUNK))
        # The part of the chunk that was received and not yet parsed.
        self._start = self._end = 0
        # Where the bytes of a large part go, while the chunk is empty.
        self._target: memoryview | None = None
        self._filled = 0
        self.total = 0  # how many bytes were received
        self._frames = self._parse()

    def space(self) -> memoryview:
        """Returns the memory for the next bytes; it is never empty."""
        if self._target is not None:
            return self._target[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = bytes(self._chunk[self._start : self._end])
            self._chunk[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._chunk[self._end :]

    def received(self, count: int) -> None:
        """Records the number of bytes that were written to the `space`."""
        self.total += count
        if self._target is not None:
            self._filled += count
        else:
            self._end += count

    def next(self) -> Frame | None:
        return next(self._frames, None)

    def close(self) -> None:
        """Ends its generator, which refers to it, so that both are freed at once."""
        self._frames.close()

    def _parse(self) -> Generator[Frame | None]:
        while True:
            while self._end - self._start < _HEADER.size:
                yield None
            kind, given_back, is_shared, count, id_, size = _HEADER.unpack_from(
                self._chunk, self._start
            )
            self._start += _HEADER.size
            numbers: list[int] = []
            if self._most_bytes is not None and count > _MOST_BUFFERS:
                raise ValueError(f"a frame has {count} buffers, more than {_MOST_BUFFERS}")
            if given_back or count:
                head = yield from self._take(given_back * _NUMBER.size + count * _PLACE.size)
                numbers = [number for (number,) in _NUMBER.iter_unpack(head)]
            if self._most_bytes is not None:
                given = given_back or is_shared
                _check_from_afar(numbers[given_back:], given, size, self._most_bytes)
            body = yield from self._take(size)
            buffers: list[Any] = []
            for nth in range(given_back, len(numbers), 2):
                place, length = numbers[nth : nth + 2]
                if place == _INLINE:
                    buffers.append((yield from self._take_writable(length)))
                else:
                    buffers.append((place, length))
            of_pickle = buffers.pop() if is_shared else None
            frame = [Frame(FrameKind(kind), id_, body, of_pickle, buffers, numbers[:given_back])]
            del body, buffers  # or they would stay until the next frame arrives
            yield frame.pop()

    def _take(self, count: int) -> Generator[None, None, Buffer]:
        if count <= self._end - self._start:
            self._start += count
            return bytes(self._chunk[self._start - count : self._start])
        return (yield from self._take_writable(count))

    def _take_writable(self, count: int) -> Generator[None, None, memoryview]:
        taken = fresh_memory(count)
        at_hand = min(count, self._end - self._start)
        taken[:at_hand] = self._chunk[self._start : self._start + at_hand]
        self._start += at_hand
        if at_hand < count:
            # The chunk is empty, so the next bytes can go to their place without a copy.
            self._target, self._filled = taken, at_hand
            while self._filled < count:
                yield None
            self._target = None
        return taken


def _check_from_afar(places: Sequence[int], given_back: int, size: int, most: int) -> None:
    """Raises `ValueError` for a frame that is too large, or refers to shared memory."""
    if given_back or any(place != _INLINE for place in places[::2]):
        raise ValueError("a frame refers to memory that is not shared")
    total = size + sum(places[1::2])
    if total > most:
        raise ValueError(f"a frame of {total:,} bytes is larger than {most:,} bytes")


def rest_of(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    for nth, part in enumerate(parts):
        length = memoryview(part).nbytes
        if sent < length:
            return [memoryview(part)[sent:], *parts[nth + 1 :]]
        sent -= length
    return []


def send(sock: socket.socket, parts: list[Buffer]) -> None:
    while parts:
        parts = rest_of(parts, sock.sendmsg(parts[:_MOST_PARTS]))


def receive(sock: socket.socket, reader: FrameReader) -> Frame | None:
    """Waits for a frame; None when the other end is gone."""
    while (frame := reader.next()) is None:
        try:
            count = sock.recv_into(reader.space())
        except OSError:
            count = 0
        if count == 0:
            return None
        reader.received(count)
    return frame
