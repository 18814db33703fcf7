"""Spans of the requests to an application, which continue the traces of their callers.

A request that the server passes on directly stays direct: what stands for it notes the status, and
makes the span current whenever the application goes on with it. The application's own pages have
no spans, since they are fetched all the time and by machines.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, Status, StatusCode

from shoal.http.app.router import PAGES
from shoal.http.direct_call import TRACE
from shoal.http.requests.exchange import DISCONNECT, split_path
from shoal.observe.otel.callers import context_of_caller
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.batching.loops.event_loop import EventLoop
    from shoal.http.direct_call import DirectCall, RequestLine

_LONGEST: Final = 1024
_HTTP_METHODS: Final = frozenset({*METHODS, "HEAD", "OPTIONS", "CONNECT", "TRACE"})


class RequestTracer:
    """Makes a span for each request.

    Args:
        tracer: Makes the spans.
        path_of: Returns the declared path for a request's path and method; None if there is none.
    """

    def __init__(self, tracer: Tracer, path_of: Callable[[str, str], str | None]) -> None:
        self._tracer = tracer
        self._path_of = path_of

    def around(self, app: ASGIApp) -> ASGIApp:
        """Returns an ASGI application that makes the spans of another one."""
        return partial(self._answer, app)

    def answer_directly(
        self, call: DirectCall, answer: Callable[[DirectCall], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Answers a request that the server has passed on directly.

        Args:
            call: The request.
            answer: Answers it.

        Returns:
            What must be awaited; None if the request is answered, or suspended.
        """
        line = call.line
        if line.path.startswith(PAGES):
            return answer(call)
        span, context = self._begun(call.header_list, "http", line.method, line.path, line.path)
        if not span.is_recording():
            token = attach(context)
            try:
                return answer(call)
            finally:
                detach(token)
        span.set_attributes(_of_scope(call.scope()))
        traced = _TracedCall(call, span, context)
        return traced.go_on(partial(answer, traced))

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or TRACE in scope:
            await app(scope, receive, send)
            return
        below = split_path(scope)[1]
        if below.startswith(PAGES):
            await app(scope, receive, send)
            return
        method = scope.get("method", "GET")
        kind, path = scope["type"], scope["path"]
        span, context = self._begun(scope["headers"], kind, method, path, below)
        span.set_attributes(_of_scope(scope))
        answer = _Answer(span)
        scope[TRACE] = ids = ids_of(span)
        note_trace = scope.get("extensions", {}).get(DISCONNECT, {}).get("note_trace")
        if note_trace is not None:
            note_trace(ids)

        async def noting(message: Message) -> None:
            if message["type"].endswith(".response.start"):
                answer.status = message["status"]
            elif message["type"] == "websocket.accept":
                answer.status = 101
            elif message["type"] == "websocket.close":
                answer.status = answer.status or 403
            await send(message)

        token = attach(context)
        try:
            await app(scope, receive, noting)
        except Exception as error:
            answer.error = type(error).__name__
            raise
        finally:
            detach(token)
            answer.end()

    def _begun(
        self, headers: Iterable[tuple[bytes, bytes]], kind: str, method: str, path: str, below: str
    ) -> tuple[Span, Context]:
        """Begins a span.

        Args:
            headers: The headers of the request.
            kind: ``"http"`` or ``"websocket"``.
            method: Its method.
            path: Its path.
            below: Its path below the mount point of the application.
        """
        context = context_of_caller(headers)
        known = method if method in _HTTP_METHODS else "_OTHER"
        name = "HTTP" if known == "_OTHER" else known
        attributes: dict[str, AttributeValue] = {
            "http.request.method": known,
            "url.path": path[:_LONGEST],
        }
        if kind == "websocket":
            attributes["network.protocol.name"] = kind
        declared = self._path_of(below, method)
        if declared is not None:
            attributes["http.route"] = declared
            name = f"{name} {declared}"
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        return span, trace.set_span_in_context(span, context)


class _Answer:
    """What becomes of a request that has a span.

    Attributes:
        status: The status of its answer; 0 until there is one.
        error: The class of the error that has ended it; empty for none.
    """

    __slots__ = ("_span", "error", "status")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.status = 0
        self.error = ""

    def end(self) -> None:
        """Ends the span."""
        span = self._span
        if not span.is_recording():
            return
        if self.status:
            span.set_attribute("http.response.status_code", self.status)
        if self.error or self.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("error.type", self.error or str(self.status))
        elif not self.status:
            span.set_attribute("error.type", "client_left")
        span.end()


class _TracedCall:
    """A `DirectCall` that has a span."""

    __slots__ = ("_answer", "_call", "_context", "_is_suspended", "_span")

    def __init__(self, call: DirectCall, span: Span, context: Context) -> None:
        self._call = call
        self._span = span
        self._context = context
        self._answer = _Answer(span)
        self._is_suspended = False
        call.note_trace(ids_of(span))

    def go_on(self, step: Callable[[], Awaitable[None] | None]) -> Awaitable[None] | None:
        """Takes a step of the application within the span, which ends when no other follows."""
        self._is_suspended = False
        token = attach(self._context)
        try:
            rest = step()
        except BaseException as error:
            self._answer.error = type(error).__name__
            self._answer.end()
            raise
        finally:
            detach(token)
        if rest is not None:
            return self._finish(rest)
        self._end_unless_suspended()
        return None

    async def _finish(self, rest: Awaitable[None]) -> None:
        token = attach(self._context)
        try:
            await rest
        except Exception as error:
            self._answer.error = type(error).__name__
            raise
        finally:
            detach(token)
            self._end_unless_suspended()

    def _end_unless_suspended(self) -> None:
        if not self._is_suspended:
            self._answer.status = self._answer.status or self._call.refused_with
            self._answer.end()

    @property
    def loop(self) -> EventLoop:
        return self._call.loop

    @property
    def now(self) -> Callable[[], float]:
        return self._call.now

    @property
    def is_loop_time(self) -> bool:
        return self._call.is_loop_time

    @property
    def answered_at(self) -> float:
        return self._call.answered_at

    @property
    def line(self) -> RequestLine:
        return self._call.line

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        return self._call.headers

    @property
    def header_list(self) -> Iterable[tuple[bytes, bytes]]:
        return self._call.header_list

    def scope(self) -> Scope:
        scope = self._call.scope()
        scope[TRACE] = ids_of(self._span)
        return scope

    async def receive(self) -> Message:
        return await self._call.receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._answer.status = message["status"]
        await self._call.send(message)

    def whole_body(self) -> bytes | None:
        return self._call.whole_body()

    def when_left(self, callback: Callable[[], object] | None) -> bool:
        return self._call.when_left(callback)

    def is_cut_off(self) -> bool:
        return self._call.is_cut_off()

    @property
    def refused_with(self) -> int:
        return self._call.refused_with

    def heartbeat(self, after_s: float, data: bytes) -> None:
        self._call.heartbeat(after_s, data)

    def suspend(self, resume: Callable[[], Awaitable[None] | None]) -> None:
        self._is_suspended = True
        self._call.suspend(partial(self.go_on, resume))

    def resume(self) -> None:
        self._call.resume()

    @property
    def is_sending(self) -> bool:
        return self._call.is_sending

    def put(self, data: bytes) -> None:
        self._call.put(data)

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        self._answer.status = status
        self._call.answer(status, fields, body)

    def note_trace(self, ids: tuple[str, str]) -> None:
        self._call.note_trace(ids)


def ids_of(span: Span) -> tuple[str, str]:
    """Returns the ids of a span's trace and of itself, in hexadecimal."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def _of_scope(scope: Scope) -> dict[str, AttributeValue]:
    """Returns what a scope says beside the request line."""
    found: dict[str, AttributeValue] = {"url.scheme": scope["scheme"]}
    if "http_version" in scope:
        found["network.protocol.version"] = scope["http_version"]
    client: Any = scope.get("client")
    if client is not None:
        found["client.address"] = client[0]
    server: Any = scope.get("server")
    if server is not None:
        found["server.address"] = server[0]
        if server[1] is not None:
            found["server.port"] = server[1]
    return found
