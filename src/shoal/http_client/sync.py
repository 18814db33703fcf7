"""The client for threads, notebooks and scripts: the calls of the async client, which block.

They run in an event loop of their own, in a thread, so nothing is written twice. httpx's blocking
client can't be cancelled from outside, as a handler's thread is when its request is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

from shoal.http_client.client import NO_ITEM, HttpClient
from shoal.replicas.portal import BlockingStream, PortalThread

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from shoal.http_client.client import CallOptions, ClientOptions, StreamOptions


class SyncHttpClient:
    """Calls the endpoints of a server, and blocks until they are answered; for several threads.

    ::

        with shoal.http_client.SyncHttpClient("http://127.0.0.1:8000") as client:
            vector = client.call("/embed", "some text")

    Its event loop runs in a thread, which starts with the first call and does not keep the program
    from ending. Without ``with``, close it with `close`. In a thread that runs an event loop, which
    would be blocked, every call raises a RuntimeError.

    Cancellation: an exception in a thread that waits, such as `KeyboardInterrupt`, cancels its
    call; so does the end of the request that the thread works for.

    Args:
        url: As for `HttpClient`.
        **options: The options of `HttpClient`; it raises the same errors.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        self.url = url
        self._client = HttpClient(url, **options)
        self._thread = PortalThread("shoal-http-client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        self._thread.close(self._client.aclose)

    def call(self, path: str, item: Any = NO_ITEM, **options: Unpack[CallOptions]) -> Any:
        """Makes a call with one result; see `HttpClient.call`."""
        call = partial(self._client.call, path, item, **options)
        return self._thread.run(call, "await client.call(...)")

    def stream(
        self, path: str, item: Any = NO_ITEM, **options: Unpack[StreamOptions]
    ) -> BlockingStream:
        """Returns the stream of a call: ``with ... as stream``; see `HttpClient.stream`."""
        stream = self._client.stream(path, item, **options)
        return BlockingStream(lambda: stream, self._thread, "client")

    def map(self, path: str, items: Iterable[Any], **options: Any) -> list[Any]:
        """Makes a call for each item, and waits for all of them; see `HttpClient.map`."""
        calls = partial(self._client.map, path, list(items), **options)
        return self._thread.run(calls, "await client.map(...)")
