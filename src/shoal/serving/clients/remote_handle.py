"""A handle that calls an endpoint through the admin API."""

from __future__ import annotations

import json
import math
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from shoal.errors import DeadlineExceeded
from shoal.serving.clients.handles import AsyncHandle
from shoal.serving.clients.wire_forms import check_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shoal.serving.clients.remote_connection import ConnectionPool, StreamingAnswer
    from shoal.serving.clients.sync import SyncHandleFace

_LEAST_S = 0.001


@dataclass(frozen=True, eq=False, repr=False)
class RemoteHandle(AsyncHandle):
    """Calls an endpoint of a server; see `Handle`. Arguments and results are JSON values.

    Attributes:
        connection: The connections to the server.
        to_sync: Makes the handle for threads.
    """

    connection: ConnectionPool
    to_sync: Callable[[RemoteHandle], SyncHandleFace]

    @property
    def sync(self) -> SyncHandleFace:
        """A handle with blocking calls, for threads."""
        return self.to_sync(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call; await its result. See `Handle.call`.

        The deadline of the innermost cancel scope is sent along.

        Raises:
            ConnectionError: The server can't be reached, or the connection broke.

        Cancellation: closes the connection, and the server cancels the call.
        """
        timeout_s, deadline = await self._time()
        body = self._body(args, kwargs, timeout_s)
        try:
            return await self.connection.call(self._path, body, timeout_s)
        except DeadlineExceeded:
            # If the deadline was a scope's, let the scope cancel: the server's clock may be ahead.
            await anyio.sleep_until(deadline)
            raise

    def stream(self, *args: Any, **kwargs: Any) -> RemoteStream:
        """Returns the stream of a call, which is made when the stream is entered."""

        async def open_() -> StreamingAnswer:
            timeout_s, deadline = await self._time()
            body = self._body(args, kwargs, timeout_s)
            try:
                return await self.connection.open_stream(self._path, body)
            except DeadlineExceeded:
                await anyio.sleep_until(deadline)  # as in `call`
                raise

        return RemoteStream(self.connection, open_)

    def __repr__(self) -> str:
        return f"<Handle of the endpoint {self.endpoint!r} at {self.connection.url}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a handle can't be pickled, it holds connections; make one where it is used:\n"
            f"    await shoal.connect(url).get_handle({self.endpoint!r})"
        )

    @property
    def _path(self) -> str:
        return f"endpoints/{self.endpoint}/call"

    async def _time(self) -> tuple[float | None, float]:
        """Returns the call's time limit, and the scope's deadline if that is the limit."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        given_s = self.handle_options.timeout_s
        if given_s == math.inf:
            given_s = None
        deadline = anyio.current_effective_deadline()
        left_s = max(deadline - anyio.current_time(), _LEAST_S)
        if left_s < (math.inf if given_s is None else given_s):
            return left_s, deadline
        return given_s, -math.inf

    def _body(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        check_keys("an argument", args)
        check_keys("an argument", kwargs)
        options = replace(self.handle_options, timeout_s=timeout_s).changed()
        if "http_headers" in options:
            options["http_headers"] = dict(options["http_headers"])
        return {"args": args, "kwargs": kwargs, "options": options}


class RemoteStream:
    """The results of a stream: ``async with handle.stream(x) as stream: async for r in stream``.

    Raises (on entering, or from the iteration, after the results that came before):
        ConnectionError: The connection broke before the stream had ended.
        Exception: As for the stream of a handle in this process.

    Cancellation: a wait that is cancelled ends the stream.
    """

    def __init__(
        self, connection: ConnectionPool, open_: Callable[[], Awaitable[StreamingAnswer]]
    ) -> None:
        self._connection = connection
        self._open = open_
        self._answer: StreamingAnswer | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        if self._answer is None and not self._over:
            self._answer = answer = await self._open()
            self._watch = weakref.finalize(self, self._connection.drop, answer)
            self._watch.atexit = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._over:
            raise StopAsyncIteration
        if self._answer is None:
            raise RuntimeError(
                "enter the stream first: async with handle.stream(...) as stream: ..."
            )
        try:
            return await self._next(self._answer)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Closes the stream and its connection, so that the server cancels it. Idempotent."""
        self._over = True
        answer, self._answer = self._answer, None
        if answer is not None:
            self._watch.detach()
            await answer.aclose()

    async def _next(self, answer: StreamingAnswer) -> Any:
        import httpx

        try:
            line = await anext(answer.lines, None)
        except httpx.TransportError as error:
            raise self._connection.broken(error) from error
        if line is None:
            raise ConnectionError(
                f"the stream from {self._connection.url} broke off before its end"
            )
        message = json.loads(line)
        if "item" in message:
            return message["item"]
        if "error" in message:
            raise self._connection.error_of(500, message["error"])
        raise StopAsyncIteration
