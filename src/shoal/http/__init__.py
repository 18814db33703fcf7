"""Serving over HTTP: `App`, a plain ASGI application, and the server that runs it.

`app` holds what a program declares. `requests` answers one request: a codec reads the item and
writes the result or the stream in the form of a protocol (`requests.codec`), and a call of the
endpoint stands between it and the engine (`requests.call`). `requests.problem` turns errors into
answers. `admin` is the admin API. `server` runs any ASGI application and does not depend on the
rest.

The names here are for the annotations of handlers: where a value comes from (`Header`, `Path`,
`Query`, `Cookie`), a file of a form (`Upload`), and the media type of a result (`MediaType`). And
`HttpProtocol` and `ProtocolRoutes` are what a protocol of one's own is made of. `merged_openapi`
adds the OpenAPI document of a mounted application to that of the application around it.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.http.openapi.merge import merged_openapi
    from shoal.http.requests.marks import Cookie, Header, MediaType, Path, Query
    from shoal.http.requests.multipart import Upload
    from shoal.http.requests.protocol import HttpProtocol, ProtocolRoutes

__all__ = [
    "Cookie",
    "Header",
    "HttpProtocol",
    "MediaType",
    "Path",
    "ProtocolRoutes",
    "Query",
    "Upload",
    "merged_openapi",
]

_WHERE: Final = {
    "Cookie": "shoal.http.requests.marks",
    "Header": "shoal.http.requests.marks",
    "HttpProtocol": "shoal.http.requests.protocol",
    "MediaType": "shoal.http.requests.marks",
    "Path": "shoal.http.requests.marks",
    "ProtocolRoutes": "shoal.http.requests.protocol",
    "Query": "shoal.http.requests.marks",
    "Upload": "shoal.http.requests.multipart",
    "merged_openapi": "shoal.http.openapi.merge",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
