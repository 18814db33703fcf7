"""A client of endpoints over HTTP, a typed layer on httpx; extra ``shoal[client]``.

Read in this order: `client` makes calls, `servers` chooses where they go, `connection` sends
requests with httpx, `bodies` converts items and results, `problems` errors, `stream` reads streams.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.http_client.client import HttpClient, SyncHttpClient
    from shoal.http_client.stream import HttpStream

__all__ = ["HttpClient", "HttpStream", "SyncHttpClient"]

_WHERE: Final = {
    "shoal.http_client.client": ("HttpClient", "SyncHttpClient"),
    "shoal.http_client.stream": ("HttpStream",),
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
