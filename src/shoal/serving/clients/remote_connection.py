"""The HTTP of a remote client: connections, requests and errors.

Errors of httpx are raised as `ConnectionError` or `TimeoutError`, and error responses as the
exceptions that they describe. Cancelling a wait closes its connection, so the server learns that
the client no longer waits.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio

from shoal.errors import ItemTooLarge, NotAllowed, ShutDown
from shoal.serving.clients.wire_errors import WireError, received
from shoal.serving.clients.wire_forms import written

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    import httpx

API: Final = "/-/api"
JSON_LINES: Final = "application/x-ndjson"
PROBLEM: Final = "urn:shoal:problem:"

_CONNECT_TIMEOUT_S: Final = 10.0
# Shorter than the servers' limit, so that a server does not close a connection during a request.
_IDLE_S: Final = 2.0
# How much longer than its time limit the client waits for a call, since the server reports it.
_MARGIN_S: Final = 10.0
# The server sends an empty line on a stream every few seconds.
_SILENCE_S: Final = 60.0

# Refusals by the admin API itself, for which `KINDS` has no class.
_REFUSALS: Final[Mapping[str, type[Exception]]] = {
    "wrong-token": NotAllowed,
    "cross-origin": NotAllowed,
    "misdirected": NotAllowed,
    "body-too-large": ItemTooLarge,
    "invalid-json": ValueError,
}


class ConnectionPool:
    """A pool of connections to one server, for one event loop.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``.
        token: The operator's token, for an admin API that requires one.
        timeout_s: How long the server may take for a verb, in seconds; None for no limit.
        transport: The transport to use instead of sockets.

    Raises:
        TypeError: The URL or the token is not text.
        ValueError: The URL has none of these forms, or the token has invalid characters.
        ModuleNotFoundError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_s: float | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        _import_httpx()
        self.url = url
        self.timeout_s = timeout_s
        self._base, self._socket = _split(url)
        self._headers = {"accept": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {_checked_token(token)}"
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        # Streams that were garbage-collected; their connections are shut down already.
        self._dropped: list[StreamingAnswer] = []
        self._closed: str | None = None

    def close_to(self, reason: str) -> None:
        """Refuses all further requests, for this reason."""
        self._closed = self._closed or reason

    @property
    def is_closed(self) -> bool:
        """Whether further requests are refused."""
        return self._closed is not None

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        self.close_to("this client is closed")
        await self._close_dropped()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends the request of a verb, and returns the server's answer.

        Raises:
            ShutDown: The client is closed.
            ConnectionError: The server can't be reached, or the connection broke.
            TimeoutError: The server took too long.
            Exception: The verb raised this.

        Cancellation: closes the connection, so that the server cancels the verb.
        """
        return await self._ask(method, path, body, self.timeout_s)

    async def call(self, path: str, body: Any, timeout_s: float | None) -> Any:
        """Makes a call with one result; like `ask`, but with a time limit of its own."""
        patience_s = None if timeout_s is None else timeout_s + _MARGIN_S
        return await self._ask("POST", path, body, patience_s)

    async def open_stream(self, path: str, body: Any) -> StreamingAnswer:
        """Makes a call that is answered by a stream; the caller must close the answer.

        Raises:
            As `ask`.
        """
        response = await self._send("POST", path, body, _SILENCE_S, stream=True)
        if response.is_success:
            return StreamingAnswer(response)
        try:
            await response.aread()
        finally:
            await response.aclose()
        raise self.error_of(response.status_code, _parsed(response))

    def drop(self, answer: StreamingAnswer) -> None:
        """Disconnects a stream that was garbage-collected unclosed; in any thread."""
        self._dropped.append(answer)
        answer.disconnect()
        warnings.warn(
            f"a stream of {self.url} was not closed; "
            "use it as: async with handle.stream(x) as stream: ...",
            ResourceWarning,
            stacklevel=2,
        )

    async def _close_dropped(self) -> None:
        while self._dropped:
            await self._dropped.pop().aclose()

    def error_of(self, status: int, body: Any) -> Exception:
        """Makes the exception that the JSON body of an error response describes."""
        problem = cast("Mapping[str, Any]", body if isinstance(body, dict) else {})
        kind = str(problem.get("type", "")).removeprefix(PROBLEM)
        text = str(problem.get("detail") or problem.get("title") or f"status {status}")
        if kind in _REFUSALS:
            return _REFUSALS[kind](text)
        error = received(WireError(kind, text, problem))
        if error is not None:
            return error
        if status == 404:
            return ConnectionError(
                f"there is no admin API at {self.url}: it is off without a token, or this is not "
                "a Shoal server"
            )
        return RuntimeError(f"{self.url} answered {status}: {text}")

    def broken(self, error: Exception) -> Exception:
        """Returns the builtin exception that stands for an error of httpx."""
        import httpx

        message = str(error) or type(error).__name__
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return ConnectionError(
                f"no server answers at {self.url} ({message}); start one:\n"
                "    shoal serve my_module:app"
            )
        if isinstance(error, httpx.TimeoutException):
            return TimeoutError(f"{self.url} took too long; the request may still be carried out")
        return ConnectionError(
            f"the connection to {self.url} broke ({message}); the request may have been carried out"
        )

    async def _ask(self, method: str, path: str, body: Any, patience_s: float | None) -> Any:
        response = await self._send(method, path, body, patience_s, stream=False)
        parsed = _parsed(response)
        if response.is_success:
            return parsed
        raise self.error_of(response.status_code, parsed)

    async def _send(
        self, method: str, path: str, body: Any, patience_s: float | None, *, stream: bool
    ) -> httpx.Response:
        import httpx

        if self._closed is not None:
            raise ShutDown(self._closed)
        await self._close_dropped()
        if self._client is None:
            self._client = self._new_client()
        headers = {"accept": JSON_LINES} if stream else {}
        content = None
        if body is not None:
            content = written(body)
            headers["content-type"] = "application/json"
        request = self._client.build_request(
            method,
            f"{API}/{path}",
            content=content,
            headers=headers,
            timeout=httpx.Timeout(
                connect=_CONNECT_TIMEOUT_S, read=patience_s, write=_SILENCE_S, pool=None
            ),
        )
        try:
            return await self._client.send(request, stream=stream)
        except httpx.TransportError as error:
            raise self.broken(error) from error

    def _new_client(self) -> httpx.AsyncClient:
        import ssl

        import httpx

        # As many connections as there are calls: the server has its own limit.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_S)
        # Loading the trusted certificate authorities takes 30 ms, and is needed only for TLS.
        is_tls = urlsplit(self._base).scheme == "https"
        verify = is_tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = self._transport
        if transport is None and self._socket is not None:
            transport = httpx.AsyncHTTPTransport(verify, uds=self._socket, limits=limits)
        # The environment's proxies are for the web, and the token should not be sent through one.
        return httpx.AsyncClient(
            base_url=self._base,
            headers=self._headers,
            limits=limits,
            transport=transport,
            trust_env=False,
            verify=verify,
        )


class StreamingAnswer:
    """The streaming HTTP response of a call, line by line.

    Attributes:
        lines: The lines, without the empty ones.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.lines = _lines_of(response)
        self._response = response
        network = response.extensions.get("network_stream")
        self._socket: Any = None if network is None else network.get_extra_info("socket")

    def disconnect(self) -> None:
        """Shuts the connection down, so that the server cancels the call; in any thread."""
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
            # the garbage collector. The connection is closed, so reading on ends them all.
            with suppress(Exception):
                async for _ in self.lines:
                    pass


async def _lines_of(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    # Not `aiter_lines`, which also splits at characters that may occur in JSON strings.
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line:  # the server sends an empty one as a keep-alive
                yield line


def _import_httpx() -> None:
    try:
        importlib.import_module("httpx")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a remote client needs {error.name}, which is not installed: pip install "
            "'shoal[client]'",
            name=error.name,
        ) from None


def _split(url: str) -> tuple[str, str | None]:
    """Returns the base of the requests' URLs, and the path of the UNIX socket, if it is one."""
    right = "write http://127.0.0.1:8000 or unix:/run/shoal.sock"
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a server's URL must be text, not {url!r}; {right}")
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path:
            raise ValueError(f"{url!r} has no path of a socket; {right}")
        return "http://localhost", path
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a server's URL; {right}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"a server's URL can't have a user, query or fragment; {right}")
    return url.rstrip("/"), None


def _checked_token(token: str) -> str:
    if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a token must be text, not of type {type(token).__name__}")
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise ValueError("a token must be printable ASCII characters, without spaces")
    return token


def _parsed(response: httpx.Response) -> Any:
    """Returns the JSON of a response; an empty mapping for an error response without JSON."""
    try:
        parsed: Any = json.loads(response.content)
    except ValueError:
        if response.is_success:
            raise ConnectionError(
                f"{response.url} did not answer with JSON: it is not Shoal's admin API"
            ) from None
        return dict[str, Any]()
    return parsed
