"""Spans of the requests to an application, which continue the traces of their callers.

The application's own pages have no spans, since machines fetch them all the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, Status, StatusCode

from shoal.asgi.extensions import DISCONNECT, TRACE
from shoal.http.app.router import PAGES
from shoal.http.requests.exchange import split_path
from shoal.observe.otel.instrument import context_of_caller
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LONGEST: Final = 1024
_HTTP_METHODS: Final = frozenset({*METHODS, "HEAD", "OPTIONS", "CONNECT", "TRACE"})


class RequestTracer:
    """Makes a span for each request; `path_of` returns its declared path, if there is one."""

    def __init__(self, tracer: Tracer, path_of: Callable[[str, str], str | None]) -> None:
        self._tracer = tracer
        self._path_of = path_of

    async def call_app(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        below = "" if kind not in ("http", "websocket") or TRACE in scope else split_path(scope)[1]
        if not below or below.startswith(PAGES):
            await app(scope, receive, send)
            return
        span, context = self._begin_span(scope, below)
        scope[TRACE] = ids = ids_of(span)
        extensions: Mapping[str, Any] = scope.get("extensions") or {}
        offered: Mapping[str, Any] = extensions.get(DISCONNECT, {})
        if "note_trace" in offered:
            offered["note_trace"](ids)

        status, failure = 0, ""

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"].endswith(".response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "websocket.close":
                status = status or 403
            await send(message)

        token = attach(context)
        try:
            await app(scope, receive, send_noted)
        except Exception as error:
            failure = type(error).__name__
            raise
        finally:
            detach(token)
            _end(span, status or offered.get("refused_with", int)(), failure)

    def _begin_span(self, scope: Scope, below: str) -> tuple[Span, Context]:
        """Begins a span; `below` is the path below the application's mount point."""
        context = context_of_caller(scope["headers"])
        method = scope.get("method", "GET")
        known = method if method in _HTTP_METHODS else "_OTHER"
        name = "HTTP" if known == "_OTHER" else known
        attributes: dict[str, AttributeValue] = {
            "http.request.method": known,
            "url.path": scope["path"][:_LONGEST],
            **_of_scope(scope),
        }
        if scope["type"] == "websocket":
            attributes["network.protocol.name"] = "websocket"
        declared = self._path_of(below, method)
        if declared is not None:
            attributes["http.route"] = declared
            name = f"{name} {declared}"
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        return span, trace.set_span_in_context(span, context)


def _end(span: Span, status: int, error: str) -> None:
    """Ends a span; the status is 0 without a response, and the error a class's name or empty."""
    if not span.is_recording():
        return
    if status:
        span.set_attribute("http.response.status_code", status)
    if error or status >= 500:
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute("error.type", error or str(status))
    elif not status:
        span.set_attribute("error.type", "client_left")
    span.end()


def ids_of(span: Span) -> tuple[str, str]:
    """Returns the ids of a span's trace and of the span, in hexadecimal."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def _of_scope(scope: Scope) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"url.scheme": scope["scheme"]}
    if "http_version" in scope:
        attributes["network.protocol.version"] = scope["http_version"]
    client: Any = scope.get("client")
    if client is not None:
        attributes["client.address"] = client[0]
    server: Any = scope.get("server")
    if server is not None:
        attributes["server.address"] = server[0]
        if server[1] is not None:
            attributes["server.port"] = server[1]
    return attributes
