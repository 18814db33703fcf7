"""A client of endpoints over HTTP, a typed layer on httpx; extra ``shoal[client]``.

::

    async with shoal.http_client.HttpClient("http://127.0.0.1:8000") as client:
        vector = await client.call("/embed", "some text")
        async with client.stream("/generate", {"prompt": "Once"}) as stream:
            async for token in stream:
                print(token)

Read in this order: `client` makes calls, `connection` sends requests with httpx, `bodies` converts
items and results, `problems` errors, `stream` reads streams; `sync` is the client for threads.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.http_client.client import HttpClient, RetryOptions
    from shoal.http_client.stream import HttpStream
    from shoal.http_client.sync import SyncHttpClient

__all__ = ["HttpClient", "HttpStream", "RetryOptions", "SyncHttpClient"]

_WHERE: Final = {
    "HttpClient": "shoal.http_client.client",
    "HttpStream": "shoal.http_client.stream",
    "RetryOptions": "shoal.http_client.client",
    "SyncHttpClient": "shoal.http_client.sync",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
