"""Handles that a backend's code is given by its annotations.

One is made before the endpoint exists that it calls, and wherever the code runs. So it finds the
controller's own handle when it is used: that of the controller that the running code belongs to.
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
    """Calls an endpoint of the controller that the running code belongs to; see `Handle`."""

    @property
    def sync(self) -> GivenSyncHandle:
        """A handle with blocking calls, for code without await."""
        return GivenSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        return await self.now().call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.stream`."""
        return self.now().stream(*args, **kwargs)

    def now(self) -> Any:
        """Returns the controller's own handle.

        Raises:
            RuntimeError: The running code belongs to no controller.
        """
        # Loaded late: few programs need it, and it makes handles of this class.
        in_replica = import_module("shoal.serving.clients.in_replica")
        return in_replica.handle_here(self.endpoint, self.handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class GivenSyncHandle(BlockingHandle):
    """The same with calls that block; see `SyncHandle`."""

    _handle: GivenHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered; see `Handle.call`."""
        return self._handle.now().sync.call(*args, **kwargs)

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> Any:
        """See `SyncHandle.map`."""
        return self._handle.now().sync.map(*columns, return_exceptions=return_exceptions)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """See `SyncHandle.stream`."""
        return self._handle.now().sync.stream(*args, **kwargs)
