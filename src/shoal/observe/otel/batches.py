"""Spans of batches and of their requests, made from the events of a batcher.

A request's span begins when its call was made, and is a child of the span that the caller was in.
It is made when the request's batch begins, with the times that the engine has noted, so a call
costs nothing more. A batch's span is linked to the spans of its requests, and they to it. It is a
child of the first of them that is sampled: so it is sampled as well, and a batch of one request is
one trace.

A continuous batch does not end while its batcher is open. Its span begins when a request joins the
empty batch, and ends when it is empty again. Its handler serves requests of many traces, so its own
spans belong to none of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagate import inject
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer

from shoal.core.events import BatchObserver, BatchRecord, Unserved
from shoal.core.request import UNDER_WAY, Batch, Request, State
from shoal.errors import DeadlineExceeded, Overloaded
from shoal.failures.exceptions import class_name
from shoal.observe.failures import id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


BACKEND: Final = "shoal.backend"
BATCH: Final = "shoal.batch.id"
SIZE: Final = "shoal.batch.size"
REASON: Final = "shoal.batch.dispatch_reason"
OUTCOME: Final = "shoal.request.outcome"
REQUEST_ID: Final = "shoal.request.id"
ERROR_TYPE: Final = "error.type"

_REFUSED: Final[Mapping[str, type[BaseException]]] = {
    "rejected": Overloaded,
    "shed": Overloaded,
    "expired": DeadlineExceeded,
}


class Surroundings:
    """Makes a span's context current while a handler runs."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = attach(self._context)

    def __exit__(self, *_: object) -> None:
        detach(self._token)


class _BatchSpans:
    __slots__ = ("_offset", "batch", "requests")

    def __init__(self, now: float) -> None:
        self.set_clock(now)
        self.batch: Span = trace.INVALID_SPAN  # while none of its requests is sampled
        self.requests: dict[Request, Span] = {}

    def set_clock(self, now: float) -> None:
        self._offset = time.time_ns() - int(now * 1e9)

    def at(self, when: float) -> int:
        """Converts a time of the event loop to nanoseconds since the epoch."""
        return self._offset + int(when * 1e9)


class BatchTracer(BatchObserver):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[tuple[str, int], _BatchSpans] = {}

    def batch_began(self, batcher: str, batch: Batch, now: float) -> None:
        spans = self._open[batcher, batch.id] = _BatchSpans(now)
        own = self._add(spans, batcher, batch, batch.requests, now)
        if batch.is_continuous or own is None:
            return
        carrier: dict[str, str] = {}
        inject(carrier, own)
        batch.trace = carrier
        batch.surroundings = Surroundings(own)

    def requests_joined(
        self, batcher: str, batch: Batch, requests: Sequence[Request], now: float
    ) -> None:
        spans = self._open.get((batcher, batch.id))
        if spans is not None:
            is_new = not spans.requests
            if is_new:  # a continuous batch was empty
                spans.set_clock(now)
            self._add(spans, batcher, batch, requests, now)
            if not is_new:
                self._note(spans, "join", len(requests), now)

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        spans = self._open.get((batcher, batch.id))
        if spans is None or request not in spans.requests:
            return
        at = spans.at(now)
        _end(spans.requests.pop(request), request, None, at)
        self._note(spans, "leave", 1, now)
        if batch.is_continuous and not spans.requests:
            spans.batch.end(at)
            spans.batch = trace.INVALID_SPAN

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        spans = self._open.pop((record.batcher, record.id), None)
        if spans is None:
            return
        at = spans.at(record.ended_at)
        for request, span in spans.requests.items():
            _end(span, request, record.error, at)
        spans.batch.set_attribute(SIZE, record.size)
        if record.is_open:
            spans.batch.set_attribute(REASON, record.reason.value)
        if record.error is not None:
            _fail(spans.batch, record.error)
        spans.batch.end(at)

    def request_left(self, batcher: str, request: Request, why: Unserved, now: float) -> None:
        spans = _BatchSpans(now)
        span = self._request_span(batcher, request, spans, {OUTCOME: why})
        if why != "rejected":
            span.add_event("queue", timestamp=spans.at(request.arrived_at))
        if why in _REFUSED:
            _fail(span, _REFUSED[why]())
        span.end(spans.at(max(now, request.arrived_at)))

    def end(self) -> None:
        while self._open:
            _, spans = self._open.popitem()
            for span in (*spans.requests.values(), spans.batch):
                span.end()

    def _add(
        self,
        spans: _BatchSpans,
        batcher: str,
        batch: Batch,
        requests: Iterable[Request],
        now: float,
    ) -> Context | None:
        # Without a sampled request that is the context of a span that is not sampled.
        begun: list[Span] = []
        unsampled: Span | None = None
        for request in requests:
            span = self._request_span(batcher, request, spans, {BATCH: batch.id})
            spans.requests[request] = span
            if not span.is_recording():
                unsampled = unsampled or span
                continue
            free_at = max(request.arrived_at, min(batch.free_at, now))
            for event, at in (("queue", request.arrived_at), ("wait", free_at), ("run", now)):
                span.add_event(event, timestamp=spans.at(at))
            begun.append(span)
        if not begun:
            return None if unsampled is None else _bare(unsampled)
        sampled = [span.get_span_context() for span in begun]
        if spans.batch is trace.INVALID_SPAN:
            attributes: dict[str, Any] = {
                BACKEND: batcher,
                BATCH: batch.id,
                SIZE: batch.size,
                REASON: batch.reason.value,
            }
            spans.batch = self._tracer.start_span(
                f"{batcher} batch",
                _bare(begun[0]),
                links=[Link(one) for one in sampled],
                start_time=spans.at(now),
                attributes=attributes,
            )
        else:
            for one in sampled:
                spans.batch.add_link(one)
        own = spans.batch.get_span_context()
        for span in begun:
            span.add_link(own)
        return _bare(spans.batch)

    def _request_span(
        self, batcher: str, request: Request, spans: _BatchSpans, attributes: Mapping[str, Any]
    ) -> Span:
        # A copy can be entered even if the handler is in the context at this moment.
        context: Context = request.context.copy().run(get_current)
        caller = trace.get_current_span(context).get_span_context()
        if caller.is_valid and not caller.is_remote and not caller.trace_flags.sampled:
            return trace.NonRecordingSpan(caller)
        begun_at = spans.at(request.arrived_at)
        attributes = {BACKEND: batcher, **attributes}
        span = self._tracer.start_span(batcher, context, start_time=begun_at, attributes=attributes)
        if span.is_recording() and (request_id := id_of(request)):
            span.set_attribute(REQUEST_ID, request_id)
        return span

    def _note(self, spans: _BatchSpans, event: str, requests: int, now: float) -> None:
        attributes = {"shoal.requests": requests, "shoal.batch.active": len(spans.requests)}
        spans.batch.add_event(event, attributes, spans.at(now))


def _bare(span: Span) -> Context:
    """Returns a context with only a span: a batch has no caller's baggage."""
    return trace.set_span_in_context(span, Context())


def _end(span: Span, request: Request, of_batch: BaseException | None, at: int) -> None:
    if not span.is_recording():
        return
    is_back = request.state in UNDER_WAY  # in the queue, or in a later batch
    span.set_attribute(OUTCOME, "retried" if is_back else request.state.value)
    if request.state is State.FAILED:
        # A caller that has its error already has taken it out of the request.
        error: Any = request.error
        _fail(span, of_batch if error is None else error)
    span.end(at)


def _fail(span: Span, error: BaseException | None) -> None:
    # The text of an error may contain anything, so it is left out.
    span.set_status(Status(StatusCode.ERROR))
    if error is not None:
        span.set_attribute(ERROR_TYPE, class_name(error))
