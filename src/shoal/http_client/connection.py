"""Connections to one server, by httpx: requests, their answers, and what breaks on the way.

Errors of httpx are raised as `ConnectionError` or `TimeoutError`. A request that was not sent at
all is told apart by `ConnectionRefusedError`, since only such a request may be sent again without
asking what the server did with it. Cancelling a wait closes its connection, so the server learns
that the client no longer waits.

Connections speak HTTP/1.1. httpx can speak HTTP/2, but does not reset the stream of a request that
is cancelled, so the server would go on with the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio

from shoal.core.extras import need
from shoal.errors import ShutDown
from shoal.http_client.address import split_url
from shoal.http_client.answer import StreamingAnswer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    import httpx

SILENCE_S: Final = 60.0
"""How long a stream may be silent, and a piece of a body may take, in seconds.

Servers send a heartbeat every few seconds.
"""

_CONNECT_TIMEOUT_S: Final = 10.0
# Shorter than the servers' limit, so that a server does not close a connection during a request.
_IDLE_S: Final = 2.0


class Connection:
    """A pool of connections to one server, for one event loop.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``.
        headers: The headers of all requests.
        max_answer_bytes: The largest answer, and the largest message of a stream, in bytes.
        max_connections: The largest number of connections; None for as many as there are requests.
        tls: Whom to trust, and who this client is; None to trust the usual authorities.
        transport: The transport to use instead of sockets.

    Raises:
        TypeError: The URL is not text.
        ValueError: The URL has none of these forms.
        ModuleNotFoundError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        max_answer_bytes: int,
        max_connections: int | None = None,
        tls: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        need("a client over HTTP", "httpx", "client")
        self.url = url
        self.max_answer_bytes = max_answer_bytes
        self._base, self._socket = split_url(url)
        # A compressed answer may be a thousand times as large as what was received.
        self._headers = {"accept-encoding": "identity", **headers}
        self._max_connections = max_connections
        self._tls = tls
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        # Streams that were garbage-collected; their connections are shut down already.
        self._dropped: list[StreamingAnswer] = []
        self._waits: set[anyio.CancelScope] = set()
        self._closed: str | None = None

    def close_to(self, reason: str) -> None:
        """Refuses all further requests, for this reason."""
        self._closed = self._closed or reason

    @property
    def is_closed(self) -> bool:
        """Whether further requests are refused."""
        return self._closed is not None

    async def aclose(self) -> None:
        """Closes the connections; requests that wait for an answer end. Idempotent."""
        self.close_to("this client is closed")
        for wait in self._waits:  # httpx would connect again for those that wait for a connection
            wait.cancel()
        await self._close_dropped()
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
        """Sends a request, and returns its answer, of which only the head was read.

        The caller must close the answer, or read it whole.

        Args:
            method: The HTTP method.
            path: The path, below that of the URL; may have a query.
            headers: More headers.
            content: The body; None for none.
            silence_s: For how long the server may send nothing, in seconds; None for no limit.

        Raises:
            ShutDown: The client is closed, or was before the answer came.
            ConnectionRefusedError: No server could be reached; nothing was sent.
            ConnectionError: The connection broke.
            TimeoutError: The server was silent for too long, or took the body too slowly.

        Cancellation: closes the connection, so that the server cancels the call.
        """
        import httpx

        from shoal.http_client.upload import Upload

        await self._close_dropped()
        if self._closed is not None:
            raise ShutDown(self._closed)
        if self._client is None:
            self._client = self._new_client()
        request = self._client.build_request(
            method,
            path,
            content=content,
            headers=dict(headers),
            timeout=httpx.Timeout(
                connect=_CONNECT_TIMEOUT_S, read=silence_s, write=SILENCE_S, pool=None
            ),
        )
        if content:
            request.stream = Upload(content)
        with anyio.CancelScope() as wait:
            self._waits.add(wait)
            try:
                response = await self._client.send(request, stream=True)
            except httpx.RequestError as error:
                raise self._broken(error) from error
            finally:
                self._waits.discard(wait)
            return StreamingAnswer(response, self.max_answer_bytes, self._broken)
        raise ShutDown(f"{self._closed}; the request may have been carried out")

    def drop(self, answer: StreamingAnswer) -> None:
        """Disconnects a stream that was garbage-collected unclosed; in any thread."""
        self._dropped.append(answer)
        answer.disconnect()

    async def _close_dropped(self) -> None:
        while self._dropped:
            await self._dropped.pop().aclose()

    def _broken(self, error: Exception) -> Exception:
        """Returns the builtin exception that stands for an error of httpx."""
        import ssl

        import httpx

        causes = _with_causes(error)
        message = next((told for told in map(str, causes) if told), type(error).__name__)
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return ConnectionError(f"no secure connection to {self.url} could be made: {message}")
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return ConnectionRefusedError(
                f"no server answers at {self.url} ({message}); start one:\n"
                "    shoal serve my_module:app"
            )
        if isinstance(error, httpx.TimeoutException):
            return TimeoutError(f"{self.url} took too long; the request may still be carried out")
        return ConnectionError(
            f"the connection to {self.url} broke ({message}); the request may have been carried out"
        )

    def _new_client(self) -> httpx.AsyncClient:
        import ssl

        import httpx

        # By default as many connections as there are calls: the server has its own limit.
        limits = httpx.Limits(max_connections=self._max_connections, keepalive_expiry=_IDLE_S)
        # Loading the trusted certificate authorities takes 30 ms, and is needed only for TLS.
        verify: ssl.SSLContext | bool = urlsplit(self._base).scheme == "https"
        verify = self._tls or verify or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = self._transport
        if transport is None and self._socket is not None:
            transport = httpx.AsyncHTTPTransport(verify, uds=self._socket, limits=limits)
        # The environment's proxies are for the web, and secrets should not be sent through one.
        return httpx.AsyncClient(
            base_url=self._base,
            headers=self._headers,
            limits=limits,
            transport=transport,
            trust_env=False,
            verify=verify,
        )


def _with_causes(error: BaseException) -> list[BaseException]:
    """Returns an error and what caused it: trio's errors of connections say nothing themselves."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes
