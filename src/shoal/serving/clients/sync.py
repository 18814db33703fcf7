"""A client for threads and notebooks: the verbs of any `Client`, as plain functions that block.

The coroutines run in the client's event loop; a thread submits them and waits. So the thread of
that loop must not wait here, as that would deadlock. The thread of another event loop must not wait
either, as that would block all other tasks of the loop. IPython is an exception: it runs a
notebook's code inside an event loop, and that code is expected to block.
"""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from shoal.batching.failures.holding import holding
from shoal.batching.loops.event_loop import holds_ctrl_c
from shoal.errors import ShutDown
from shoal.replicas.threads import WorkCancelled, check_may_block, inner_calls
from shoal.serving.clients.handles import BlockingHandle
from shoal.serving.clients.protocol import VERBS, Client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.from_thread import BlockingPortal

    from shoal.serving.clients.protocol import ResultIterator

T = TypeVar("T")

_OVER: Final[Any] = object()


class Bridge(Protocol):
    """Runs coroutines in a client's event loop, for other threads."""

    def run(self, function: Callable[[], Awaitable[T]], instead: str) -> T:
        """Runs an async function in the event loop, waits, and returns its result.

        Args:
            function: The function.
            instead: What code in an event loop should write instead.

        Raises:
            RuntimeError: This thread runs an event loop.
            ShutDown: The client's event loop has ended.
            Exception: `function` raised this.
        """
        ...


class PortalBridge:
    """A `Bridge` to the event loop of a blocking portal.

    Args:
        portal: The portal.
        thread_id: The `threading.get_ident` of its event loop's thread; this thread by default.
    """

    def __init__(self, portal: BlockingPortal, thread_id: int | None = None) -> None:
        self._portal = portal
        self._process = os.getpid()
        self._thread_id = threading.get_ident() if thread_id is None else thread_id

    def run(self, function: Callable[[], Awaitable[T]], instead: str) -> T:
        """See `Bridge.run`. An exception in the waiting thread cancels the coroutine."""
        if os.getpid() != self._process:
            raise ShutDown(
                f"this client was made in process {self._process}, and this is {os.getpid()}, a "
                "fork of it, which has no copy of its event loop; make a client here"
            )
        check_may_block(instead, self._thread_id)
        try:
            future = self._portal.start_task_soon(_held, function)
        except RuntimeError:
            raise ShutDown("the event loop of this client has ended") from None
        calls = inner_calls.get(None)
        try:
            if calls is None:
                return future.result()
            with calls.waiting(future.cancel):
                return future.result()
        except CancelledError:
            if calls is not None and calls.is_cancelled:
                raise WorkCancelled("the request that made this call was cancelled") from None
            raise ShutDown("the event loop of this client has ended") from None
        except BaseException:
            future.cancel()
            raise


@holds_ctrl_c
async def _held(function: Callable[[], Awaitable[T]]) -> T:
    """Calls a function that may call the user's code, whose exceptions must not end the loop."""
    with holding():
        return await function()


class SyncFace:
    """The verbs of a client as plain functions; see `shoal.serving.clients.protocol.SyncClient`.

    Args:
        client: The client.
        bridge: Runs coroutines in its event loop.
    """

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
        """See `Client.shutdown`. Does nothing if the client's event loop has ended."""
        with suppress(ShutDown):
            self._bridge.run(self._client.shutdown, "await client.shutdown()")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *VERBS})


@dataclass(frozen=True, eq=False, repr=False)
class SyncHandleFace(BlockingHandle):
    """A handle whose calls block, for threads; see `shoal.serving.clients.protocol.SyncHandle`."""

    _bridge: Bridge  # runs coroutines in the handle's event loop

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered; see `Handle.call`."""
        return self._bridge.run(
            lambda: self._handle.call(*args, **kwargs), "await handle.call(...)"
        )

    def stream(self, *args: Any, **kwargs: Any) -> SyncStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""
        return SyncStream(lambda: self._handle.stream(*args, **kwargs), self._bridge)


class SyncStream:
    """A stream for plain code: ``with ... as stream: for result in stream: ...``.

    It raises the exceptions of the handle's stream. Leaving the block closes the stream.
    """

    def __init__(self, open_: Callable[[], ResultIterator], bridge: Bridge) -> None:
        self._open = open_
        self._bridge = bridge
        self._stream: ResultIterator | None = None

    def __enter__(self) -> Self:
        self._stream = self._bridge.run(self._enter, "async with handle.stream(...) as stream:")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._stream is not None:
            with suppress(ShutDown):  # then the stream has ended
                self._bridge.run(self._stream.aclose, "await stream.aclose()")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._stream is None:
            raise RuntimeError(
                "enter the stream first: with handle.sync.stream(...) as stream: ..."
            )
        result = self._bridge.run(self._next, "async for result in stream:")
        if result is _OVER:
            raise StopIteration
        return result

    async def _enter(self) -> ResultIterator:
        return await self._open().__aenter__()

    async def _next(self) -> Any:
        assert self._stream is not None
        return await anext(self._stream, _OVER)
