"""The access log: a line of JSON for each request, once it has ended.

It logs no bodies and no headers. It logs only the path of the URL, since queries may contain
tokens.

============== ================================================================================
``time``       when the request began, in UTC, ISO 8601
``client``     the client's address; null at a UNIX socket
``protocol``   ``"HTTP/1.1"``, ``"HTTP/2"``, or ``"WebSocket"``
``method``     the method; null if the request could not be read
``path``       the path, without the query; null if the request could not be read
``status``     the status of the response; null if no response began
``bytes``      how many bytes of the body the application sent
``duration_s`` how long the request took, in seconds
``request_id`` the ``X-Request-ID`` of the response; null if it has none
``trace_id``   the id of its trace, and ``span_id`` the id of its span; omitted without tracing
============== ================================================================================
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Final

import orjson

from shoal.asgi.extensions import TRACE
from shoal.server.log_errors import contained

if TYPE_CHECKING:
    from starlette.types import Message, Scope


LOGGER: Final = "shoal.access"

_log: Final = logging.getLogger(LOGGER)


class AccessLogLine:
    """What is known of a request; its server notes each message that the application sends."""

    trace_ids: tuple[str, str] | None = None

    def __init__(self, took_s: float = 0.0) -> None:
        self._began_at = datetime.now(UTC) - timedelta(seconds=took_s)
        self._began = perf_counter() - took_s
        self._status: int | None = None
        self._request_id: str | None = None
        self._bytes = 0

    def note_size(self, size: int) -> None:
        self._bytes += size

    def note_refusal(self, status: int, size: int = 0) -> None:
        """Notes the server's own response, in place of the application's; status 0 for none."""
        if status:
            self._status, self._bytes = status, size

    def note(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self._status = message["status"]
                for name, value in message.get("headers", ()):
                    if name.lower() == b"x-request-id":
                        self._request_id = value.decode("latin-1")
            case "http.response.body" | "websocket.http.response.body":
                self._bytes += len(message.get("body", b""))
            case "websocket.accept":
                self._status = 101
            case "websocket.close" if self._status is None:
                self._status = 403
            case _:
                pass

    def write(self, scope: Scope) -> None:
        with contained("the access log failed"):  # handlers and filters of logs are the user's
            self._write(scope)

    def _write(self, scope: Scope) -> None:
        path, client = scope["path"], scope.get("client")
        is_http = scope["type"] == "http"
        line = {
            "time": self._began_at.isoformat(timespec="milliseconds"),
            "client": None if client is None else f"{client[0]}:{client[1]}",
            "protocol": f"HTTP/{scope['http_version']}" if is_http else "WebSocket",
            "method": scope.get("method", "GET"),
            # Characters that UTF-8 can't encode are written as escapes.
            "path": path and path.encode("utf-8", "backslashreplace").decode(),
            "status": self._status,
            "bytes": self._bytes,
            "duration_s": round(perf_counter() - self._began, 6),
            "request_id": self._request_id,
        }
        trace_ids = self.trace_ids or scope.get(TRACE)
        if trace_ids is not None:
            line["trace_id"], line["span_id"] = trace_ids
        text = orjson.dumps(line).decode()
        # JSON leaves some control characters that end lines or control terminals.
        _log.info("%s", text if text.isprintable() else json.dumps(line).replace("\x7f", r"\u007f"))
