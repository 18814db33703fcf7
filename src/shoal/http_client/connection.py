"""Requests to one server with httpx, and their responses.

Errors of httpx become `ConnectionError` or `TimeoutError`; `ConnectionRefusedError` means that
nothing was sent. Cancelling a wait closes its connection, so that the server cancels the call.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

from shoal.core.extras import need
from shoal.errors import ShutDown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    import httpx

# How long a stream may be silent, and a piece of a body may take; servers send heartbeats.
SILENCE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
# The largest response, and the largest line of a stream, in bytes.
_MOST_BYTES: Final = 2**28
# Shorter than the servers' limit, so that a server does not close a connection during a request.
_IDLE_S: Final = 2.0


class Connection:
    """A pool of connections to one server, for one event loop: a client of httpx, if not given."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        client: httpx.AsyncClient | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        need("a client over HTTP", "httpx", "client")
        self.url = url
        self._base, self._socket = _split_url(url)
        # A compressed response may be a thousand times as large as what was received.
        self._headers = {"accept-encoding": "identity", **headers}
        self._client = client
        self._transport = transport
        # The responses of streams that were garbage-collected; they are shut down already.
        self.dropped: list[StreamingAnswer] = []
        self._waits: set[anyio.CancelScope] = set()
        self._closed: str | None = None

    @property
    def is_closed(self) -> bool:
        """Whether further requests are refused."""
        return self._closed is not None

    def close_to(self, reason: str) -> None:
        """Refuses all further requests, for this reason."""
        self._closed = self._closed or reason

    async def aclose(self) -> None:
        """Closes the connections; requests that wait for a response end. Idempotent."""
        self.close_to("this client is closed")
        for wait in self._waits:  # httpx would connect again for those that wait for a connection
            wait.cancel()
        while self.dropped:
            await self.dropped.pop().aclose()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def open(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        silence_s: float | None,
    ) -> StreamingAnswer:
        """Sends a request; returns its response once its head was read."""
        import httpx

        from shoal.http_client.upload import Upload

        while self.dropped:
            await self.dropped.pop().aclose()
        if self._closed is not None:
            raise ShutDown(self._closed)
        if self._client is None:
            self._client = self._new_client()
        all_headers = {**self._headers, **headers}  # all names are in lower case
        timeout = httpx.Timeout(silence_s, connect=_CONNECT_TIMEOUT_S, write=SILENCE_S, pool=None)
        with anyio.CancelScope() as wait:
            self._waits.add(wait)
            try:
                request = self._client.build_request(
                    method, self._base + path, headers=all_headers, content=content, timeout=timeout
                )
                if content:
                    request.stream = Upload(content)
                response = await self._client.send(request, stream=True)
            except (httpx.InvalidURL, httpx.LocalProtocolError):  # may name a secret
                raise ValueError(
                    f"a path, method or header of a request to {self.url} can't be sent"
                ) from None
            except httpx.RequestError as error:
                raise self.broken(error) from error
            finally:
                self._waits.discard(wait)
            return StreamingAnswer(response, self)
        raise ShutDown(f"{self._closed}; the request may have been carried out")

    def broken(self, error: Exception) -> Exception:
        """Returns the builtin exception for an error of httpx."""
        import httpx

        causes: list[BaseException] = [error]  # trio's errors of connections say nothing themselves
        while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
            causes.append(cause)
        message = next((text for text in map(str, causes) if text), type(error).__name__)
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return ConnectionError(f"no secure connection to {self.url} could be made: {message}")
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            start = "start one:\n    shoal serve my_module:app"
            return ConnectionRefusedError(f"no server answers at {self.url} ({message}); {start}")
        if isinstance(error, httpx.TimeoutException):
            return TimeoutError(f"{self.url} took too long; the request may still be carried out")
        return ConnectionError(
            f"the connection to {self.url} broke ({message}); the request may have been carried out"
        )

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_S)
        # Loading the trusted certificate authorities takes 30 ms, and is needed only for TLS.
        is_tls = urlsplit(self._base).scheme == "https"
        verify = is_tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = self._transport
        if transport is None and self._socket is not None:
            transport = httpx.AsyncHTTPTransport(verify, uds=self._socket, limits=limits)
        # The environment's proxies are for the web, and secrets should not be sent through one.
        return httpx.AsyncClient(limits=limits, transport=transport, trust_env=False, verify=verify)


class StreamingAnswer:
    """A response whose body is read as it arrives: whole, or by its `lines` without empty ones."""

    def __init__(self, response: httpx.Response, connection: Connection) -> None:
        self.status = response.status_code
        self.is_success = response.is_success
        self.url = str(response.url)
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.retry_after = response.headers.get("retry-after", "")
        self.lines = self._read_lines()
        self._pieces = response.aiter_bytes()
        self._response = response
        self._connection = connection
        self._process = os.getpid()
        network = response.extensions.get("network_stream")
        self._socket: Any = None if network is None else network.get_extra_info("socket")

    async def read(self) -> bytes:
        """Reads the body, and closes the response."""
        import httpx

        body = bytearray()
        try:
            async for piece in self._pieces:
                body += piece
                self._check_size(len(body))
            return bytes(body)
        except httpx.RequestError as error:
            raise self._connection.broken(error) from error
        finally:
            await self.aclose()

    def _check_size(self, size: int) -> None:
        if size > _MOST_BYTES:
            raise ConnectionError(f"{self.url} sent more than {_MOST_BYTES} bytes")

    def drop(self) -> None:
        """Shuts the connection of a garbage-collected stream down; in any thread."""
        self._connection.dropped.append(self)
        if os.getpid() != self._process or self._socket is None:
            return  # the process that was forked may still read
        with suppress(OSError), socket.socket(fileno=os.dup(self._socket.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        """Closes the response and its connection, even if cancelled. Idempotent."""
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
            raise self._connection.broken(error) from error


def _split_url(url: str) -> tuple[str, str | None]:
    """Returns the base of the requests' URLs, and the path of the UNIX socket, if it is one."""
    right = "write http://127.0.0.1:8000 or unix:/run/shoal.sock"
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a server's URL must be text, not {url!r}; {right}")
    if path := re.match("unix:(?://(?=/))?(.+)", url):
        return "http://localhost", path[1]
    try:
        parts = urlsplit(url)
        has_more = parts.username is not None or parts.query or parts.fragment or parts.port == 0
    except ValueError:  # the host or the port has another form
        has_more = True
    # `urlsplit` drops line breaks.
    if has_more or not re.match(r"(?i)https?://[^/]", url) or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not a server's URL; {right}")
    return url.rstrip("/"), None
