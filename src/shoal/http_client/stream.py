"""The stream of a call over HTTP."""

from __future__ import annotations

import json
import math
import weakref
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio

from shoal.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shoal.http_client.answer import StreamingAnswer
    from shoal.http_client.connection import Connection

_OVER: Final = object()


class HttpStream:
    """The results of a stream: ``async with client.stream(...) as stream: async for r in stream``.

    The call is made when the stream is entered.

    Raises (on entering, or from the iteration, after the results that came before):
        ConnectionError: The connection broke before the stream had ended.
        TimeoutError: The server was silent for 60 s; it sends heartbeats.
        DeadlineExceeded: The call's time limit has passed.
        Exception: As for a call with one result.

    Cancellation: a wait that is cancelled ends the stream.

    Args:
        connection: The connections to the server.
        open_: Makes the call. Returns the answer, and when the stream must have ended, on the event
            loop's clock.
        error_of: Returns the exception that a problem stands for.
    """

    def __init__(
        self,
        connection: Connection,
        open_: Callable[[], Awaitable[tuple[StreamingAnswer, float]]],
        error_of: Callable[[int, object], Exception],
    ) -> None:
        self._connection = connection
        self._open = open_
        self._error_of = error_of
        self._answer: StreamingAnswer | None = None
        self._deadline = math.inf
        self._over = False

    async def __aenter__(self) -> Self:
        if self._answer is None and not self._over:
            answer, self._deadline = await self._open()
            self._answer = answer
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
            raise RuntimeError("enter the stream first: async with ... .stream(...) as stream: ...")
        try:
            result = await self._next(self._answer)
        except BaseException:
            await self.aclose()
            raise
        if result is _OVER:
            await self.aclose()
            raise StopAsyncIteration
        return result

    async def aclose(self) -> None:
        """Closes the stream and its connection, so that the server cancels it. Idempotent."""
        self._over = True
        answer, self._answer = self._answer, None
        if answer is not None:
            self._watch.detach()
            await answer.aclose()

    async def _next(self, answer: StreamingAnswer) -> Any:
        line: bytes | None = None
        with anyio.CancelScope(deadline=self._deadline) as scope:
            line = await anext(answer.lines, None)
        if scope.cancelled_caught:
            raise DeadlineExceeded(f"the stream from {answer.url} did not end in time")
        if line is None:
            raise ConnectionError(f"the stream from {answer.url} broke off before its end")
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            members = cast("Mapping[str, Any]", message)
            if "item" in members:
                return members["item"]
            if "error" in members:
                raise self._error_of(500, members["error"])
            if "end" in members:
                return _OVER
        raise ConnectionError(f"{answer.url} sent a message that is not of a stream")
