"""Memory for large arrays that come from another process."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Final

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
