"""The stream of a call: its results one after the other, wherever they come from."""

from __future__ import annotations

import math
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio

from shoal.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class StreamSource(Protocol):
    """Where the results of one stream come from, once its call was made."""

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        ...

    async def next(self) -> Any:
        """Returns the next result.

        Raises:
            StopAsyncIteration: The stream has ended.
            Exception: It has failed, or what it came by has.

        Cancellation: the stream is closed next.
        """
        ...

    async def aclose(self) -> None:
        """Ends the stream, so that the server cancels it unless it has ended."""
        ...

    def drop(self) -> None:
        """Ends a stream that was garbage-collected unclosed; in any thread."""
        ...


class HttpStream:
    """The results of a stream: ``async with client.stream(...) as stream: async for r in stream``.

    The call is made when the stream is entered. Once all was read, its connection may serve other
    calls; a stream that is left earlier closes its connection. On a WebSocket the server sends at
    most 64 items ahead of the reader, and leaving a stream leaves the WebSocket open.

    Raises (on entering, or from the iteration, after the results that came before):
        ConnectionError: The connection broke before the stream had ended.
        TimeoutError: The server was silent for 60 s; it sends heartbeats.
        DeadlineExceeded: The call's time limit has passed.
        Exception: As for a call with one result.

    Cancellation: a wait that is cancelled ends the stream.

    Args:
        open_: Makes the call. Returns where the results come from, and when the stream must have
            ended, on the event loop's clock.
    """

    def __init__(self, open_: Callable[[], Awaitable[tuple[StreamSource, float]]]) -> None:
        self._open = open_
        self._source: StreamSource | None = None
        self._deadline = math.inf
        self._over = False
        self._reading: anyio.CancelScope | None = None  # of the last wait for a result

    async def __aenter__(self) -> Self:
        if self._source is None and not self._over:
            source, self._deadline = await self._open()
            self._source = source
            self._watch = weakref.finalize(self, _drop, source)
            self._watch.atexit = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._over:
            raise StopAsyncIteration
        source = self._source
        if source is None:
            raise RuntimeError("enter the stream first: async with ... .stream(...) as stream: ...")
        try:
            with anyio.CancelScope(deadline=self._deadline) as self._reading:
                return await source.next()
            raise DeadlineExceeded(f"the stream from {source.url} did not end in time")
        except BaseException as error:
            was_closed = self._source is None
            await self.aclose()
            if was_closed and isinstance(error, Exception):
                raise StopAsyncIteration from None  # another task has closed it meanwhile
            raise

    async def aclose(self) -> None:
        """Closes the stream, so that the server cancels it unless it has ended. Idempotent.

        For a task that waits for its next result meanwhile, it has ended.
        """
        self._over = True
        if self._reading is not None:
            self._reading.cancel()
        source, self._source = self._source, None
        if source is not None:
            self._watch.detach()
            await source.aclose()


def _drop(source: StreamSource) -> None:
    source.drop()
    warnings.warn(
        f"a stream of {source.url} was not closed; "
        "use it as: async with ... .stream(...) as stream: ...",
        ResourceWarning,
        stacklevel=2,
    )
