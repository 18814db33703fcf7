"""The stream of a call: its results one after the other, from the lines of a response."""

from __future__ import annotations

import json
import math
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio

from shoal.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shoal.http_client.connection import StreamingAnswer

_ENDS_WITHIN_S: Final = 1.0  # the body, after the last message


class HttpStream:
    """The results of a stream: ``async with client.stream(...) as stream: async for r in stream``.

    The call is made when the stream is entered. Once all was read, its connection may serve other
    calls; a stream that is left earlier closes its connection, so the server cancels it.

    Raises (on entering, or from the iteration, after the results before it):
        TimeoutError: The server was silent for 60 s; it sends heartbeats.
        Exception: As for a call with one result.

    Cancellation: a wait that is cancelled ends the stream.
    """

    def __init__(
        self,
        open_: Callable[[], Awaitable[tuple[StreamingAnswer, float]]],
        error_of: Callable[[str, int, object], Exception],
    ) -> None:
        self._open = open_  # makes the call; returns its response, and the deadline of the stream
        self._error_of = error_of  # the exception for a problem of a response with this URL
        self._answer: StreamingAnswer | None = None
        self._deadline = math.inf
        self._over = False
        self._reading: anyio.CancelScope | None = None  # of the last wait for a result

    async def __aenter__(self) -> Self:
        if self._answer is None and not self._over:
            self._answer, self._deadline = await self._open()
            self._watch = weakref.finalize(self, _drop, self._answer)
            self._watch.atexit = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._over:
            raise StopAsyncIteration
        answer = self._answer
        if answer is None:
            raise RuntimeError("enter the stream first: async with ... .stream(...) as stream: ...")
        try:
            with anyio.CancelScope(deadline=self._deadline) as self._reading:
                return await self._next(answer)
            raise DeadlineExceeded(f"the stream from {answer.url} did not end in time")
        except BaseException as error:
            was_closed = self._answer is None
            await self.aclose()
            if was_closed and isinstance(error, Exception):
                raise StopAsyncIteration from None  # another task has closed it
            raise

    async def aclose(self) -> None:
        """Closes the stream, so that the server cancels it unless it has ended. Idempotent.

        A task that waits for its next result sees the end of the stream.
        """
        self._over = True
        if self._reading is not None:
            self._reading.cancel()
        answer, self._answer = self._answer, None
        if answer is not None:
            self._watch.detach()
            await answer.aclose()

    async def _next(self, answer: StreamingAnswer) -> Any:
        line = await anext(answer.lines, None)
        if line is None:
            raise ConnectionError(f"the stream from {answer.url} broke off before its end")
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        members = cast("Mapping[str, Any]", message if isinstance(message, dict) else {})
        if "item" in members:
            return members["item"]
        if "error" not in members and "end" not in members:
            raise ConnectionError(f"{answer.url} sent a message that is not of a stream")
        # Read to its end, the body leaves its connection to other calls. All results are there.
        with anyio.move_on_after(_ENDS_WITHIN_S), suppress(ConnectionError, TimeoutError):
            await anext(answer.lines, None)
        if "error" in members:
            raise self._error_of(answer.url, 500, members["error"])
        raise StopAsyncIteration


def _drop(answer: StreamingAnswer) -> None:
    answer.drop()
    warnings.warn(
        f"a stream of {answer.url} was not closed; "
        "use it as: async with ... .stream(...) as stream: ...",
        ResourceWarning,
        stacklevel=2,
    )
