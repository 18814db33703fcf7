"""Serving over HTTP: `App`, a plain ASGI application, and the server that runs it.

`app` holds what a program declares. `requests` answers one request: a codec reads the item and
writes the result or the stream in the form of a protocol (`requests.codec`), and a call of the
endpoint stands between it and the engine (`requests.call`). `requests.problem` turns errors into
answers. `admin` is the admin API. `server` runs any ASGI application and does not depend on the
rest.

`MediaType` annotates the media type of a result. A protocol of your own implements `HttpProtocol`
and `ProtocolRoutes`. `merged_openapi` adds the OpenAPI document of a mounted application to that of
the application around it.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.http.openapi.merge import merged_openapi
    from shoal.http.requests.json_codec import MediaType
    from shoal.http.requests.protocol import HttpProtocol, ProtocolRoutes

__all__ = [
    "HttpProtocol",
    "MediaType",
    "ProtocolRoutes",
    "merged_openapi",
]

_WHERE: Final = {
    "HttpProtocol": "shoal.http.requests.protocol",
    "MediaType": "shoal.http.requests.json_codec",
    "ProtocolRoutes": "shoal.http.requests.protocol",
    "merged_openapi": "shoal.http.openapi.merge",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
