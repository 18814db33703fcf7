"""A client for threads and notebooks: the verbs of any `Client`, as plain functions that block.

The coroutines run in the client's event loop, through a `Bridge`.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import ShutDown
from shoal.replicas.portal import BlockingStream
from shoal.serving.clients.handles import BlockingHandle
from shoal.serving.clients.protocol import VERBS, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.replicas.portal import Bridge


class SyncFace:
    def __init__(self, client: Client, bridge: Bridge) -> None:
        self._client = client
        self._bridge = bridge

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in VERBS:
            raise AttributeError(f"a client has no verb {verb!r}; it has {', '.join(VERBS)}")
        method = getattr(self._client, verb)

        @functools.wraps(method)
        def block(*args: Any, **kwargs: Any) -> Any:
            result = self._bridge.run(lambda: method(*args, **kwargs), f"await client.{verb}(...)")
            if verb == "get_handle":
                return SyncHandleFace(result, self._bridge)
            return result

        block.__doc__ = getattr(Client, verb).__doc__  # the controller's own methods inherit it
        return block

    def shutdown(self) -> None:
        """Does nothing if the client's event loop has ended."""
        with suppress(ShutDown):
            self._bridge.run(self._client.shutdown, "await client.shutdown()")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *VERBS})


@dataclass(frozen=True, eq=False, repr=False)
class SyncHandleFace(BlockingHandle):
    _bridge: Bridge  # runs coroutines in the handle's event loop

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._bridge.run(
            lambda: self._handle.call(*args, **kwargs), "await handle.call(...)"
        )

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> list[Any]:
        lists = [list(column) for column in columns]  # in this thread: they may block
        return self._bridge.run(
            lambda: self._handle.map(*lists, return_exceptions=return_exceptions),
            "await handle.map(...)",
        )

    def stream(self, *args: Any, **kwargs: Any) -> BlockingStream:
        return BlockingStream(lambda: self._handle.stream(*args, **kwargs), self._bridge, "handle")
