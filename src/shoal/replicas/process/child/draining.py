"""In the worker: what tells its code that the backend begins to end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from shoal.replicas.run_soon import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadsafeDraining:
    """Is set once, in any thread, and waited for in any event loop; see `shoal.core.batch`."""

    def __init__(self) -> None:
        self._is_set = False
        self._tells: set[Callable[[], object]] = set()

    def is_set(self) -> bool:
        """Says whether the backend begins to end; from any thread."""
        return self._is_set

    def set(self) -> None:
        """Says that it does; from any thread."""
        self._is_set = True
        for tell in tuple(self._tells):
            tell()

    async def wait(self) -> None:
        """Waits until it does."""
        came = anyio.Event()
        tell = partial(loop_of_caller()[1], came.set)
        self._tells.add(tell)
        try:
            if self._is_set:
                await anyio.lowlevel.checkpoint()
            else:
                await came.wait()
        finally:
            self._tells.discard(tell)
