"""The client for threads, notebooks and scripts: the same calls, which block.

Its calls are those of the async client, made in an event loop of its own, in a thread. So nothing
is written twice: retries, time limits, streams and the release of connections hold for both. A core
without input and output would still need a second pool of connections, a second loop of retries and
second streams; and httpx's blocking client can't be cancelled from outside, as a handler's thread
is when its request is.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from shoal.errors import ShutDown
from shoal.http_client.client import NO_ITEM, HttpClient, connect
from shoal.replicas.portal import BlockingStream, PortalThread

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from shoal.http_client.keywords import (
        CallKeywords,
        ConnectKeywords,
        SocketCallKeywords,
        SocketKeywords,
        StreamKeywords,
    )
    from shoal.http_client.websocket.socket import HttpSocket
    from shoal.replicas.portal import Held


def connect_sync(url: str, **options: Unpack[ConnectKeywords]) -> SyncHttpClient:
    """Returns a client for code without an event loop; it may be used from several threads.

    ::

        with shoal.http_client.connect_sync("http://127.0.0.1:8000") as client:
            vector = client.call("/embed", "some text")

    Its event loop runs in a thread, which starts with the first call and does not keep the program
    from ending. Without ``with``, close it with `SyncHttpClient.close`.

    Args:
        url: As for `connect`.
        **options: The options of `connect`.

    Raises:
        TypeError: As for `connect`.
        ValueError: As for `connect`.
        ModuleNotFoundError: httpx is not installed.
    """
    return SyncHttpClient(connect(url, **options))


class SyncHttpClient:
    """Calls the endpoints of a server, and blocks until they are answered; see `HttpClient`.

    In a thread that runs an event loop, which would be blocked, every call raises a RuntimeError.

    Cancellation: an exception in a thread that waits, such as `KeyboardInterrupt`, cancels its
    call; so does the end of the request that the thread works for.

    Args:
        client: The async client, for which this is a face.
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._thread = PortalThread("shoal-http-client")

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        self._client.close_to("this client is closed")
        self._thread.close(self._client.aclose)

    def call(self, path: str, item: Any = NO_ITEM, **options: Unpack[CallKeywords]) -> Any:
        """Makes a call with one result; see `HttpClient.call`."""
        call = partial(self._client.call, path, item, **options)
        return self._thread.run(call, "await client.call(...)")

    def stream(
        self, path: str, item: Any = NO_ITEM, **options: Unpack[StreamKeywords]
    ) -> BlockingStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``.

        See `HttpClient.stream`.
        """
        stream = self._client.stream(path, item, **options)
        return BlockingStream(lambda: stream, self._thread, "client")

    def websocket(self, path: str, **options: Unpack[SocketKeywords]) -> SyncHttpSocket:
        """Returns a WebSocket for many calls of one endpoint, from several threads.

        ::

            with client.websocket("/embed") as socket:
                vector = socket.call("some text")

        It connects when it is entered; see `HttpClient.websocket`.
        """
        return SyncHttpSocket(self._client.websocket(path, **options), self._thread)

    def map(
        self,
        path: str,
        items: Iterable[Any],
        *,
        max_concurrent: int = 64,
        return_exceptions: bool = False,
        **options: Unpack[CallKeywords],
    ) -> list[Any]:
        """Makes a call for each item, and waits for all of them; see `HttpClient.map`."""
        calls = partial(
            self._client.map,
            path,
            list(items),
            max_concurrent=max_concurrent,
            return_exceptions=return_exceptions,
            **options,
        )
        return self._thread.run(calls, "await client.map(...)")


class SyncHttpSocket:
    """Calls one endpoint over one WebSocket, and blocks until it is answered; see `HttpSocket`.

    Several threads may use it at once. Their calls run at once on the one connection.

    Args:
        socket: The async WebSocket, for which this is a face.
        thread: The event loop of its client.
    """

    def __init__(self, socket: HttpSocket, thread: PortalThread) -> None:
        self._socket = socket
        self._thread = thread
        self._held: Held[HttpSocket] | None = None

    def __enter__(self) -> Self:
        self._held = self._thread.hold(self._socket, "async with client.websocket(...) as socket:")
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._held is not None
        with suppress(ShutDown):  # its client is closed, and so is it
            self._held.leave()

    def call(self, item: Any, **options: Unpack[SocketCallKeywords]) -> Any:
        """Makes a call with one result; see `HttpSocket.call`."""
        call = partial(self._socket.call, item, **options)
        return self._thread.run(call, "await socket.call(...)")

    def stream(self, item: Any, **options: Unpack[SocketCallKeywords]) -> BlockingStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``.

        See `HttpSocket.stream`.
        """
        stream = partial(self._socket.stream, item, **options)
        return BlockingStream(stream, self._thread, "socket")
