"""An answer that is read as it comes: whole, or line by line."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import httpx


class StreamingAnswer:
    """The HTTP response to a request, whose body was not read yet.

    Args:
        response: The response of httpx.
        max_bytes: The largest body, and the largest line, in bytes.
        broken: Returns the exception that stands for an error of httpx.

    Attributes:
        status: The HTTP status.
        lines: The lines of the body, without the empty ones.
    """

    def __init__(
        self, response: httpx.Response, max_bytes: int, broken: Callable[[Exception], Exception]
    ) -> None:
        self.status = response.status_code
        self.lines = self._read_lines()
        self._response = response
        self._pieces = response.aiter_bytes()
        self._max_bytes = max_bytes
        self._broken = broken
        self._process = os.getpid()
        network = response.extensions.get("network_stream")
        self._socket: Any = None if network is None else network.get_extra_info("socket")

    @property
    def is_success(self) -> bool:
        """Whether the status says that the request succeeded."""
        return self._response.is_success

    @property
    def url(self) -> str:
        """The URL of the request."""
        return str(self._response.url)

    @property
    def media_type(self) -> str:
        """The media type of the body, without parameters; empty if it has none."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def network(self) -> Any:
        """The stream of bytes below, once the server has switched protocols."""
        return self._response.extensions["network_stream"]

    def header(self, name: str) -> str:
        """Returns the value of a header; empty if the response does not have it."""
        return str(self._response.headers.get(name, ""))

    async def read(self) -> bytes:
        """Reads the body, and closes the answer.

        Raises:
            ConnectionError: The connection broke, or the body is too large.
            TimeoutError: The server was silent for too long.

        Cancellation: closes the connection.
        """
        import httpx

        body = bytearray()
        try:
            async for piece in self._pieces:
                body += piece
                self._check_size(len(body))
        except httpx.RequestError as error:
            raise self._broken(error) from error
        finally:
            await self.aclose()
        return bytes(body)

    def disconnect(self) -> None:
        """Shuts the connection down, so that the server cancels the call; in any thread.

        Not in a fork, as the process that was forked may still read.
        """
        if os.getpid() != self._process:
            return
        with suppress(OSError):
            if self._socket is not None:
                with socket.socket(fileno=os.dup(self._socket.fileno())) as same:
                    same.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        """Closes the response and its connection. Idempotent.

        Cancellation: it is closed nevertheless.
        """
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
            # httpx nests several generators, and closing the outermost one leaves the inner ones to
            # the garbage collector. Reading on ends them all: the connection is closed, or the wait
            # is cancelled, since one of HTTP/2 stays open for other requests.
            for generator in (self.lines, self._pieces):
                with anyio.CancelScope() as reading, suppress(Exception):
                    reading.cancel()
                    async for _ in generator:
                        pass

    async def _read_lines(self) -> AsyncGenerator[bytes, None]:
        # Not `aiter_lines`, which also splits at characters that may occur in JSON strings.
        import httpx

        rest = bytearray()
        try:
            async for piece in self._pieces:
                rest += piece
                if b"\n" in piece:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        if line:  # the server sends an empty one as a keep-alive
                            yield bytes(line)
                self._check_size(len(rest))
        except httpx.RequestError as error:
            raise self._broken(error) from error

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise ConnectionError(
                f"{self.url} sent more than {self._max_bytes} bytes; set max_answer_bytes"
            )
