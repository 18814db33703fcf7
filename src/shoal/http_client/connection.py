"""Requests to servers with httpx, and their responses.

Errors of httpx become `ConnectionError` or `TimeoutError`; `ConnectionRefusedError` and `NotSent`
mean that the request has not run. Cancelling a wait closes its connection, so that the server
cancels the call.
"""

from __future__ import annotations

import math
import os
import re
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

from shoal.core.extras import need
from shoal.errors import ShutDown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import httpx

    from shoal.http_client.upload import Upload

# How long a stream may be silent, and a piece of a body may take; servers send heartbeats.
SILENCE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
# The largest response, and the largest line of a stream, in bytes.
_MOST_BYTES: Final = 2**28
# Shorter than the servers' limit, so that a server does not close a connection during a request.
_IDLE_S: Final = 2.0
# How long a server rests that failed; twice as long after each further failure, up to the longest.
_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 30.0


class NotSent(ConnectionError):
    """A connection broke before the body of a request was sent, so the request has not run."""


@dataclass(eq=False)
class Server:
    url: str  # as messages name it
    base: str  # what the URLs of its requests begin with
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # names in lower case
    extensions: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of httpx
    connect_timeout_s: float = _CONNECT_TIMEOUT_S
    running: int = 0  # requests that wait for the end of their response
    failures: int = 0  # requests in a row that got no response
    rests_until: float = -math.inf  # until then, other servers get the requests

    def failed(self, failures_before: int) -> None:
        """Records that a request got no response; `failures_before` is the number at its start."""
        # With others since then, it failed at the same time as one that has been counted.
        if self.failures == failures_before:
            self.failures += 1
            self.rest_again()

    def rest_again(self) -> None:
        self.rest(_REST_S * 2.0 ** min(self.failures - 1, 10))

    def rest(self, for_s: float) -> None:
        until = anyio.current_time() + min(for_s, _LONGEST_REST_S)
        self.rests_until = max(self.rests_until, until)


class Connection:
    """A pool of connections to servers, for one event loop: a client of httpx, if not given."""

    def __init__(
        self,
        urls: Sequence[str],
        headers: Mapping[str, str],
        *,
        client: httpx.AsyncClient | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        need("a client over HTTP", "httpx", "client")
        self.url = ", ".join(urls)
        self._urls = urls
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
        server: Server,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        silence_s: float | None,
    ) -> StreamingAnswer:
        """Sends a request to a server; returns its response once its head was read."""
        import httpx

        from shoal.http_client.upload import Upload

        while self.dropped:
            await self.dropped.pop().aclose()
        if self._closed is not None:
            raise ShutDown(self._closed)
        if self._client is None:
            self._client = self._new_client()
        all_headers = {**self._headers, **server.headers, **headers}  # all names are in lower case
        timeout = httpx.Timeout(
            silence_s, connect=server.connect_timeout_s, write=SILENCE_S, pool=None
        )
        upload = Upload(content) if content else None
        with anyio.CancelScope() as wait:
            self._waits.add(wait)
            server.running += 1
            failures_before = server.failures
            response: httpx.Response | None = None
            try:
                request = self._client.build_request(
                    method,
                    server.base + path,
                    headers=all_headers,
                    content=content,
                    timeout=timeout,
                    extensions=server.extensions,
                )
                if upload is not None:
                    request.stream = upload
                response = await self._client.send(request, stream=True)
                if server.failures:
                    server.failures, server.rests_until = 0, -math.inf
            except (httpx.InvalidURL, httpx.LocalProtocolError):  # may name a secret
                raise ValueError(
                    f"a path, method or header of a request to {server.url} can't be sent"
                ) from None
            except httpx.RequestError as error:
                server.failed(failures_before)
                kind = NotSent if _is_unsent(error, upload) else ConnectionError
                # In no variable, since its traceback holds this frame.
                raise broken_by(error, server.url, kind) from error
            finally:
                self._waits.discard(wait)
                if response is None:
                    server.running -= 1
            if response is not None:
                return StreamingAnswer(response, self, server)
        raise ShutDown(f"{self._closed}; the request may have been carried out")

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_S)
        # Loading the trusted certificate authorities takes 30 ms, and is needed only for TLS.
        is_tls = any(re.match("(?i)(dns:)?https:", url) for url in self._urls)
        verify = is_tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = self._transport
        if transport is None and (path := socket_of(self._urls[0])) is not None:
            transport = httpx.AsyncHTTPTransport(verify, uds=path, limits=limits)
        # The environment's proxies are for the web, and secrets should not be sent through one.
        return httpx.AsyncClient(limits=limits, transport=transport, trust_env=False, verify=verify)


class StreamingAnswer:
    """A response whose body is read as it arrives: whole, or by its `lines` without empty ones."""

    def __init__(self, response: httpx.Response, connection: Connection, server: Server) -> None:
        self.status = response.status_code
        self.is_success = response.is_success
        self.url = str(response.url)
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.retry_after = response.headers.get("retry-after", "")
        self.lines = self._read_lines()
        self._pieces = response.aiter_bytes()
        self._response = response
        self._connection = connection
        self._server: Server | None = server  # None once it was closed
        self._server_url = server.url
        self._process = os.getpid()
        network = response.extensions.get("network_stream")
        self._socket: Any = None if network is None else network.get_extra_info("socket")

    async def read(self) -> bytes:
        import httpx

        body = bytearray()
        try:
            async for piece in self._pieces:
                body += piece
                self._check_size(len(body))
            return bytes(body)
        except httpx.RequestError as error:
            raise broken_by(error, self._server_url) from error
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
        if self._server is not None:
            self._server.running -= 1
            self._server = None
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
            raise broken_by(error, self._server_url) from error


def _is_unsent(error: httpx.RequestError, upload: Upload | None) -> bool:
    import httpx

    if isinstance(error, httpx.ConnectError):
        return True
    # httpcore takes the body only once the head was written; other transports may not.
    is_of_httpcore = type(error.__cause__).__module__.partition(".")[0] == "httpcore"
    return is_of_httpcore and upload is not None and not upload.was_begun


def broken_by(
    error: Exception, url: str, kind: type[ConnectionError] = ConnectionError
) -> Exception:
    """Returns the builtin exception, or one of a kind, for an error of httpx in a request."""
    import httpx

    causes: list[BaseException] = [error]  # trio's errors of connections say nothing themselves
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    message = next((text for text in map(str, causes) if text), type(error).__name__)
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return kind(f"no secure connection to {url} could be made: {message}")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        start = "start one:\n    shoal serve my_module:app"
        return ConnectionRefusedError(f"no server answers at {url} ({message}); {start}")
    if isinstance(error, httpx.TimeoutException):
        return TimeoutError(f"{url} took too long; the request may still be carried out")
    return kind(f"the connection to {url} broke ({message}); the request may have been carried out")


def socket_of(url: str) -> str | None:
    """Returns the path of the UNIX socket; None for another URL."""
    path = re.match("unix:(?://(?=/))?(.+)", url)
    return None if path is None else path[1]


def server_of(url: str) -> Server:
    right = "write http://127.0.0.1:8000 or unix:/run/shoal.sock"
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a server's URL must be text, not {url!r}; {right}")
    if socket_of(url) is not None:
        return Server(url, "http://localhost")
    try:
        parts = urlsplit(url)
        has_more = parts.username is not None or parts.query or parts.fragment or parts.port == 0
    except ValueError:  # the host or the port has another form
        has_more = True
    # `urlsplit` drops line breaks.
    if has_more or not re.match(r"(?i)https?://[^/]", url) or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not a server's URL; {right}")
    return Server(url, url.rstrip("/"))
