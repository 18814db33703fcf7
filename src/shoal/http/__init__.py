"""Serving over HTTP: `App`, a plain ASGI application.

`app` holds the declarations of a program, and its pages. `requests` handles one request, in any
protocol. The protocols are `json` (Shoal's own), `websocket`, `openai` and `oip`. `openapi`
describes the endpoints, `admin` operates them, and `dashboard` shows them. The package knows
ASGI, and no server.

A protocol of your own implements `HttpProtocol`
and `ProtocolRoutes`.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.http.requests.protocol import HttpProtocol, ProtocolRoutes

__all__ = [
    "HttpProtocol",
    "ProtocolRoutes",
]

_WHERE: Final = {
    "shoal.http.requests.protocol": ("HttpProtocol", "ProtocolRoutes"),
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
