"""A handle that calls an endpoint through the admin API."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from shoal.core.json_text import check_keys
from shoal.errors import DeadlineExceeded
from shoal.http_client.stream import HttpStream
from shoal.serving.clients.handles import AsyncHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.http_client.connection import StreamingAnswer
    from shoal.serving.clients.remote_connection import AdminConnection
    from shoal.serving.clients.sync import SyncHandleFace

_LEAST_S = 0.001


@dataclass(frozen=True, eq=False, repr=False)
class RemoteHandle(AsyncHandle):
    """Calls an endpoint of a server; see `Handle`. Arguments and results are JSON values.

    Attributes:
        connection: The connections to the server.
        to_sync: Makes the handle for threads.
    """

    _MAX_CONCURRENT = 64

    connection: AdminConnection
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

    def stream(self, *args: Any, **kwargs: Any) -> HttpStream:
        """Returns the stream of a call, which is made when the stream is entered."""

        async def open_() -> tuple[StreamingAnswer, float]:
            timeout_s, deadline = await self._time()
            body = self._body(args, kwargs, timeout_s)
            try:
                return await self.connection.open_stream(self._path, body), math.inf
            except DeadlineExceeded:
                await anyio.sleep_until(deadline)  # as in `call`
                raise

        return HttpStream(open_, self.connection.error_of)

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
