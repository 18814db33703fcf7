"""Handles for the parameters of a backend's code that are annotated with `Handle`.

They are made before the endpoint exists, and before it is known where the code runs. So each call
looks up the controller's own handle: that of the controller that the running code belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.serving.clients.handles import AsyncHandle, BlockingHandle

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, eq=False, repr=False)
class GivenHandle(AsyncHandle):
    @property
    def sync(self) -> GivenSyncHandle:
        return GivenSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        return await self.now().call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self.now().stream(*args, **kwargs)

    def now(self) -> Any:
        """Returns the controller's own handle; raises `RuntimeError` outside of a controller."""
        # Loaded late: few programs need it, and it makes handles of this class.
        in_replica = import_module("shoal.serving.clients.in_replica")
        return in_replica.handle_here(self.endpoint, self.handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class GivenSyncHandle(BlockingHandle):
    _handle: GivenHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.now().sync.call(*args, **kwargs)

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> Any:
        return self._handle.now().sync.map(*columns, return_exceptions=return_exceptions)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.now().sync.stream(*args, **kwargs)
