"""In the worker: the flag that is set when the backend shuts down."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadsafeDraining:
    """A flag that any thread can set and any event loop can wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._tells: set[Callable[[], object]] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for tell in tuple(self._tells):
            tell()

    async def wait(self) -> None:
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
