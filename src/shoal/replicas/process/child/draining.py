"""In the worker: the flag that tells the code that its backend is shutting down."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadsafeDraining:
    """A flag that any thread can set and any event loop can wait for; see `shoal.core.batch`."""

    def __init__(self) -> None:
        self._is_set = False
        self._tells: set[Callable[[], object]] = set()

    def is_set(self) -> bool:
        """Returns whether the backend is shutting down; from any thread."""
        return self._is_set

    def set(self) -> None:
        """Sets the flag; from any thread."""
        self._is_set = True
        for tell in tuple(self._tells):
            tell()

    async def wait(self) -> None:
        """Waits until the flag is set."""
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
