"""Memory that a process replica shares with its parent, for the large arrays of its batches.

The problem: a batch of images is tens of megabytes, and with a socket the kernel copies each byte
twice, in small pieces. With shared memory the parent copies it once, and the worker uses it in
place. The memory is allocated once and reused: fresh pages cost several times more than the copy.
It is a ``memfd``, which has no name, so nothing is left over whichever process dies.
`multiprocessing.shared_memory` has names, and a tracker process that removes them too early. The
size is sealed: if one end truncated the memory, SIGBUS would kill the other end when it reads.

Each direction has a region. Its sender reserves one block for a message, and reuses it only when
the reader has given it back. The parent copies each block at once. The worker's code gets views of
the block instead, and may keep them after its batch. A block is therefore given back when its last
view is gone, not when the batch has ended.

Buffers of equal size lie in their block without gaps: a list of equal arrays forms one array with
one more dimension.
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

from shoal.replicas.process.wire.frames import Buffer, fresh_memory

if TYPE_CHECKING:
    from collections.abc import Sequence


_ALIGNMENT: Final = 64
# How many bytes are copied before the clock is read.
_PIECE: Final = 2**21
# How long a copy holds the GIL before it lets other threads run, which takes it 0.07 ms.
_HELD_S: Final = 0.001

_NONE: Final = memoryview(b"")


def new_memory(size: int) -> int | None:
    """Returns a file descriptor of memory for both directions; None where that is not available."""
    if sys.platform != "linux" or size == 0:
        return None
    try:
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:  # not permitted here
        return None
    try:
        os.ftruncate(fd, 2 * _rounded(size))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SharedMemory:
    """Maps the region that the parent writes, and the region that the worker writes.

    Without a file descriptor, both regions are empty.
    """

    def __init__(self, fd: int | None, size: int) -> None:
        size = 0 if fd is None else _rounded(size)
        mapped = memoryview(b"" if fd is None else mmap.mmap(fd, 2 * size))
        self.requests = Region(mapped[:size])
        self.replies = Region(mapped[size:])


class Region:
    """The memory of one direction: one end reserves and writes blocks, the other reads them."""

    def __init__(self, memory: memoryview = _NONE) -> None:
        self._memory = memory
        # Writer only: the end of each reserved block, by its start.
        self._reserved: dict[int, int] = {}
        # Reader only: blocks that it no longer uses and has not yet reported.
        self.given_back: deque[int] = deque()

    @property
    def used(self) -> int:
        return sum(end - start for start, end in self._reserved.items())

    def reserve(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Reserves one block and returns the place of each buffer; empty if there is no room."""
        places: list[tuple[int, int]] = []
        end, before = 0, 0
        for size in sizes:
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
        """Frees blocks that the reader has given back, or that were never sent."""
        for start in starts:
            del self._reserved[start]

    def write(
        self, places: Sequence[tuple[int, int]], buffers: Sequence[Sequence[Buffer]], *, pause: bool
    ) -> None:
        """Copies the parts of each buffer to its place; `pause` lets other threads run."""
        copy = _Copy(pause=pause)
        for (offset, _), parts in zip(places, buffers, strict=True):
            for part in parts:
                source = memoryview(part)
                end = offset + source.nbytes
                copy.run(source, self._memory[offset:end])
                offset = end

    def copies(self, places: Sequence[tuple[int, int]], *, pause: bool) -> list[memoryview]:
        """Returns copies of these places of a block, and gives the block back."""
        copy = _Copy(pause=pause)
        copies: list[memoryview] = []
        for offset, size in places:
            target = fresh_memory(size)
            copy.run(self._memory[offset : offset + size], target)
            copies.append(target)
        self.give_back(places)
        return copies

    def views(self, places: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Returns views of these places of a block; it is given back when all views are gone."""
        start = places[0][0]
        end = max(offset + size for offset, size in places)
        block = self._memory[start:end]
        given_back = self.given_back
        weakref.finalize(block, given_back.append, start).atexit = False
        # A view of a view refers to the memory, not to the first view, so its end would not be
        # noticed. These views refer to the block through the PickleBuffer.
        held = memoryview(pickle.PickleBuffer(block))
        return [held[offset - start : offset - start + size] for offset, size in places]

    def give_back(self, places: Sequence[tuple[int, int]]) -> None:
        self.given_back.append(places[0][0])


class _Copy:
    """Copies memory in pieces, and lets other threads run between them if wanted."""

    def __init__(self, *, pause: bool) -> None:
        self._pause = pause
        self._pause_at = time.monotonic() + _HELD_S

    def run(self, source: memoryview, target: memoryview) -> None:
        for start in range(0, len(source), _PIECE):
            target[start : start + _PIECE] = source[start : start + _PIECE]
            if self._pause and time.monotonic() >= self._pause_at:
                time.sleep(0)  # releases the GIL for long enough for another thread
                self._pause_at = time.monotonic() + _HELD_S


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _rounded(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
