"""The results of a stream that come as JSON lines, in the body of an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.http_client.answer import StreamingAnswer
    from shoal.http_client.connection import Connection

# How long the end of the body may take after the last message, in seconds: it comes with it.
_ENDS_WITHIN_S: Final = 1.0


class JsonLines:
    """A source of results; see `shoal.http_client.stream.StreamSource`.

    Args:
        connection: The connections to the server.
        answer: The answer.
        error_of: Returns the exception that a problem stands for.
    """

    def __init__(
        self,
        connection: Connection,
        answer: StreamingAnswer,
        error_of: Callable[[int, object], Exception],
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._error_of = error_of

    @property
    def url(self) -> str:
        """The URL of the request."""
        return self._answer.url

    async def next(self) -> Any:
        """Returns the next result.

        Raises:
            StopAsyncIteration: The stream has ended.
            ConnectionError: The connection broke, or the server sent what is no stream.
            TimeoutError: The server was silent for too long.
            Exception: What the server reports.
        """
        line = await anext(self._answer.lines, None)
        if line is None:
            raise ConnectionError(f"the stream from {self.url} broke off before its end")
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            members = cast("Mapping[str, Any]", message)
            if "item" in members:
                return members["item"]
            if "error" in members:
                await self._read_end()
                raise self._error_of(500, members["error"])
            if "end" in members:
                await self._read_end()
                raise StopAsyncIteration
        raise ConnectionError(f"{self.url} sent a message that is not of a stream")

    async def aclose(self) -> None:
        """Closes the answer; and its connection, unless the answer was read to its end."""
        await self._answer.aclose()

    def drop(self) -> None:
        """Disconnects the stream, as it was garbage-collected unclosed; in any thread."""
        self._connection.drop(self._answer)

    async def _read_end(self) -> None:
        """Reads the end of the body, so that its connection can serve another call."""
        with anyio.move_on_after(_ENDS_WITHIN_S):
            try:
                await anext(self._answer.lines, None)
            except (ConnectionError, TimeoutError):
                return  # all results are there
