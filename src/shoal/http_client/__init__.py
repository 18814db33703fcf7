"""A client of endpoints over HTTP; extra ``shoal[client]``.

::

    async with shoal.http_client.connect("http://127.0.0.1:8000") as client:
        vector = await client.call("/embed", "some text")
        async with client.stream("/generate", {"prompt": "Once"}) as stream:
            async for token in stream:
                print(token)

Names are loaded lazily, as in `shoal`, since other clients need only some modules of this package.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.http_client.client import HttpClient, connect
    from shoal.http_client.retries import RetryOptions
    from shoal.http_client.stream import HttpStream
    from shoal.http_client.sync import SyncHttpClient, SyncHttpSocket, connect_sync
    from shoal.http_client.websocket.socket import HttpSocket

__all__ = [
    "HttpClient",
    "HttpSocket",
    "HttpStream",
    "RetryOptions",
    "SyncHttpClient",
    "SyncHttpSocket",
    "connect",
    "connect_sync",
]

_WHERE: Final = {
    "HttpClient": "shoal.http_client.client",
    "HttpSocket": "shoal.http_client.websocket.socket",
    "HttpStream": "shoal.http_client.stream",
    "RetryOptions": "shoal.http_client.retries",
    "SyncHttpClient": "shoal.http_client.sync",
    "SyncHttpSocket": "shoal.http_client.sync",
    "connect": "shoal.http_client.client",
    "connect_sync": "shoal.http_client.sync",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
