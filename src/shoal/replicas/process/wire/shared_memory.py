"""Memory that a process replica shares with its parent, for the large arrays of its batches.

The problem: a batch of images is tens of megabytes, and through a socket each byte of it is copied
twice by the kernel, in small pieces. In shared memory the parent copies it once, and the worker
works on it where it lies. The memory must be there for good: fresh pages cost several times more
than the copy. It is a ``memfd``, which has no name, so that nothing is left over whoever dies;
`multiprocessing.shared_memory` has names, and a tracker process that removes them too early. Its
size is sealed: memory that one end had cut off would kill the other by SIGBUS where it reads it.

Each direction has a region. Its sender reserves one block for a message, and reserves it anew only
when the reader has given it back. The parent copies what it reads out at once. The worker's code
gets views of the block instead, and may keep them for longer than its batch: so a block is given
back when the last view of it is gone, and not when the batch has ended.

Buffers of one size lie in their block without gaps: a list of equal arrays is one array of one
more dimension.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import sys
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

from shoal.replicas.process.wire.frames import fresh_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.replicas.process.wire.frames import Buffer

_ALIGNMENT: Final = 64
_PIECE: Final = 2**23
"""How much is copied at once: nothing else in the process runs Python code meanwhile."""


def new_memory(size: int) -> int | None:
    """Makes the memory of an arena.

    Args:
        size: The bytes of each direction.

    Returns:
        Its file descriptor; None where the platform has no such memory, or `size` is 0.
    """
    if sys.platform != "linux" or size == 0:
        return None
    try:
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:  # not allowed here
        return None
    try:
        os.ftruncate(fd, 2 * _rounded(size))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SharedMemory:
    """The shared memory, mapped.

    Attributes:
        requests: The region that the parent writes.
        replies: The region that the worker writes.
    """

    def __init__(self, fd: int, size: int) -> None:
        size = _rounded(size)
        mapped = memoryview(mmap.mmap(fd, 2 * size))
        self.requests = Region(mapped[:size])
        self.replies = Region(mapped[size:])


class Region:
    """One direction's half: one end reserves and writes blocks, the other reads them.

    Attributes:
        given_back: Reader only: blocks that it is done with and has not yet said so.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        # Writer only: where each reserved block ends, by where it starts.
        self._reserved: dict[int, int] = {}
        self.given_back: deque[int] = deque()

    @property
    def used(self) -> int:
        """How many bytes are reserved."""
        return sum(end - start for start, end in self._reserved.items())

    def reserve(self, buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
        """Reserves one block for all of these buffers.

        Returns:
            Where each of them goes, as offset and length, the first of them at the block's start;
            nothing if there is no room.
        """
        places: list[tuple[int, int]] = []
        end, before = 0, 0
        for buffer in buffers:
            size = memoryview(buffer).nbytes
            start = end if size == before else _aligned(end)
            places.append((start, size))
            end, before = start + size, size
        at = 0
        for start, stop in sorted(self._reserved.items()):
            if at + end <= start:
                break
            at = _aligned(stop)
        if at + end > len(self._memory):
            return []
        self._reserved[at] = at + end
        return [(at + offset, size) for offset, size in places]

    def free(self, starts: Sequence[int]) -> None:
        """Gives up blocks, because the reader is done with them, or never heard of them."""
        for start in starts:
            del self._reserved[start]

    def write(
        self, places: Sequence[tuple[int, int]], buffers: Sequence[Buffer], *, pause: bool
    ) -> None:
        """Copies buffers to their places.

        Args:
            places: Where they go.
            buffers: What to copy.
            pause: Whether other threads are to have turns in between.
        """
        copy = _Copy(pause=pause)
        for (offset, size), buffer in zip(places, buffers, strict=True):
            copy.run(memoryview(buffer), self._memory[offset : offset + size])

    def copies(self, places: Sequence[tuple[int, int]], *, pause: bool) -> list[memoryview]:
        """Copies what lies at these places of a block, and gives the block back."""
        copy = _Copy(pause=pause)
        found: list[memoryview] = []
        for offset, size in places:
            target = fresh_memory(size)
            copy.run(self._memory[offset : offset + size], target)
            found.append(target)
        self.give_back(places)
        return found

    def views(self, places: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Returns views of these places of a block, which is given back when they are all gone."""
        start = places[0][0]
        end = max(offset + size for offset, size in places)
        block = self._memory[start:end]
        given_back = self.given_back
        weakref.finalize(block, given_back.append, start).atexit = False
        # Views of a view hold on to the memory and not to that view, so nothing would tell when
        # they are gone. These hold on to the block by way of the PickleBuffer.
        held = memoryview(pickle.PickleBuffer(block))
        return [held[offset - start : offset - start + size] for offset, size in places]

    def give_back(self, places: Sequence[tuple[int, int]]) -> None:
        """Notes that the block of these places will not be read any more."""
        self.given_back.append(places[0][0])


class _Copy:
    """Copies, and lets other threads have turns if need be."""

    def __init__(self, *, pause: bool) -> None:
        self._pause = pause
        self._left = _PIECE  # until the next pause

    def run(self, source: memoryview, target: memoryview) -> None:
        done = 0
        while done < len(source):
            piece = min(len(source) - done, self._left)
            target[done : done + piece] = source[done : done + piece]
            done += piece
            self._left -= piece
            if self._left == 0:
                self._left = _PIECE
                if self._pause:
                    time.sleep(0)  # gives the interpreter away for long enough to be taken


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _rounded(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
