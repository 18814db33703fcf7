"""The access log: a line of JSON for each request, once it was answered or abandoned.

It logs no bodies or headers, and of the URL only the path, since queries may contain tokens. It is
middleware, which is not used where the log is not enabled.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Final

import orjson

from shoal.asgi.extensions import DISCONNECT, TRACE
from shoal.server.log_errors import contained
from shoal.server.served_call import ServedCall

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER: Final = "shoal.access"
"""The name of its logger."""

_log: Final = logging.getLogger(LOGGER)


class AccessLog:
    """Writes a line for each request to an application, once the request has ended.

    ============== ================================================================================
    ``time``       when it began, in UTC, ISO 8601
    ``client``     the client's address; null at a UNIX socket
    ``protocol``   ``"HTTP/1.1"``, ``"HTTP/2"``, or ``"WebSocket"``
    ``method``     the method; null if the request could not be read
    ``path``       the path, without the query; null likewise
    ``status``     the status of the answer; null if no answer began
    ``bytes``      how many bytes of the body the application sent
    ``duration_s`` how long it took, in seconds
    ``request_id`` the ``X-Request-ID`` of the answer; null if it has none
    ``trace_id``   the id of its trace, and ``span_id`` that of its span; left out without tracing
    ============== ================================================================================

    Args:
        app: The application.
        is_answered_for: Whether another server than this package's answers 500 in place of an
            application that does not answer.
    """

    def __init__(self, app: ASGIApp, *, is_answered_for: bool = False) -> None:
        self._app = app
        self._is_answered_for = is_answered_for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        entry = Entry()
        extensions = scope.get("extensions", {})
        offered = extensions.get(DISCONNECT, {})
        call = offered if isinstance(offered, ServedCall) else None
        if offered:
            # The application may be given a copy of the scope.
            extensions[DISCONNECT] = {**offered, "note_trace": entry.note_trace}
        has_ended = False

        async def noting(message: Message) -> None:
            entry.note(message)
            await send(message)

        try:
            await self._app(scope, receive, noting)
            has_ended = True
        except Exception:
            has_ended = True
            raise
        finally:  # also where it was cancelled
            is_answered_for = self._is_answered_for
            if call is not None:
                entry.note_status(call.refusal, call.refused_size)
                is_answered_for = not call.is_over
            if has_ended and is_answered_for:
                # With which the server answers in place of the application.
                entry.note_status(503 if call is not None and call.is_cut_off() else 500)
            method = scope.get("method", "GET")
            entry.trace_ids = entry.trace_ids or scope.get(TRACE)
            with contained("the access log failed"):  # handlers and filters of logs are the user's
                entry.write(protocol_of(scope), method, scope["path"], scope.get("client"))


def protocol_of(scope: Scope) -> str:
    """Returns the protocol of a request, as the log has it."""
    return f"HTTP/{scope['http_version']}" if scope["type"] == "http" else "WebSocket"


class Entry:
    """One request's line: notes its answer, and is written at its end.

    Args:
        took_s: How long ago the request began, in seconds.

    Attributes:
        trace_ids: The ids of its trace and span; None if it is not traced.
    """

    trace_ids: tuple[str, str] | None = None

    def __init__(self, took_s: float = 0.0) -> None:
        self._began_at = datetime.now(UTC) - timedelta(seconds=took_s)
        self._began = perf_counter() - took_s
        self._status: int | None = None
        self._request_id: str | None = None
        self._bytes = 0

    def note_answer(self, status: int, request_id: bytes, size: int) -> None:
        """Notes a whole answer, with the size of its body in bytes."""
        self._status = status
        self._request_id = request_id.decode("latin-1") or None
        self._bytes += size

    def note_trace(self, ids: tuple[str, str]) -> None:
        """Notes the ids of the request's trace and span."""
        self.trace_ids = ids

    def note_status(self, status: int, size: int = 0) -> None:
        """Notes with which status the server answers if nothing else has; 0 for none."""
        if self._status is None and status:
            self._status = status
            self._bytes += size

    def note(self, message: Message) -> None:
        """Notes a message of ASGI."""
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

    def write(
        self,
        protocol: str,
        method: str | None,
        path: str | None,
        client: tuple[str, int] | None,
    ) -> None:
        """Writes the line."""
        line = {
            "time": self._began_at.isoformat(timespec="milliseconds"),
            "client": None if client is None else f"{client[0]}:{client[1]}",
            "protocol": protocol,
            "method": method,
            # Characters that UTF-8 can't encode are written as escapes.
            "path": path and path.encode("utf-8", "backslashreplace").decode(),
            "status": self._status,
            "bytes": self._bytes,
            "duration_s": round(perf_counter() - self._began, 6),
            "request_id": self._request_id,
        }
        if self.trace_ids is not None:
            line["trace_id"], line["span_id"] = self.trace_ids
        text = orjson.dumps(line).decode()
        # Control characters beyond those that JSON escapes control terminals, or end lines.
        _log.info("%s", text if text.isprintable() else json.dumps(line).replace("\x7f", r"\u007f"))
