"""Turns tracing on, and reads the trace that a request from the network continues."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, get_global_textmap
from opentelemetry.propagators.textmap import Getter, TextMapPropagator

from shoal.observe.otel.batches import BatchTracer
from shoal.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.trace import TracerProvider


SCOPE: Final = "shoal"
"""The name of the instrumentation scope."""


class Instrumentation:
    def __init__(self, end: list[Callable[[], object]]) -> None:
        self._end = end

    def uninstrument(self) -> None:
        """Turns it off: open spans end now. Idempotent."""
        while self._end:
            self._end.pop()()


def instrument(target: object, *, tracer_provider: TracerProvider | None = None) -> Instrumentation:
    """Traces the batches and requests of a batcher, a function, a controller or an application.

    ::

        from shoal.observe import instrument

        instrument(app)

    Each request has a span, with the events ``queue``, ``wait`` and ``run``. Each batch has a span
    that is linked to the spans of its requests; its handler runs in it. A `shoal.App` also has a
    span for each HTTP request and each WebSocket, which continues the trace of its caller.

    With a function that is decorated with `shoal.batch`, all its batchers are traced, in each event
    loop, also those that are opened later. With a method (``instrument(Model.predict)``), the
    batchers of all instances are traced.

    Args:
        target: A `shoal.Batcher`, a function decorated with `shoal.batch`, a `shoal.Controller` or
            a `shoal.App`.
        tracer_provider: Makes the tracer; None for the global one, also if that is set later.

    Returns:
        An object that turns tracing off.

    Raises:
        TypeError: The target has no batches, or is a method of one instance.
        RuntimeError: It is instrumented already.
    """
    tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
    observers: Any = getattr(target, "observers", None)
    if not hasattr(observers, "all"):
        raise TypeError(
            "instrument() takes a shoal.Batcher, a function decorated with @shoal.batch, a method "
            "of all instances, a shoal.Controller or a shoal.App, such as\n    instrument(app)\n"
            f"    instrument(Model.predict)\nnot {target!r}"
        )
    if any(isinstance(one, BatchTracer) for one in observers.all):
        raise RuntimeError(
            f"this {type(target).__name__} is instrumented already; call uninstrument() of what "
            "the first instrument() returned"
        )
    batches = BatchTracer(tracer)
    end: list[Callable[[], object]] = [batches.end, lambda: observers.remove(batches)]
    if (trace_requests := getattr(target, "trace_requests", None)) is not None:
        end.append(trace_requests(tracer))
    observers.add(batches)
    return Instrumentation(end)


_LONGEST: Final = 512
_MOST_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
# Callers can't be trusted with what is passed on to all other services; and OpenTelemetry logs each
# part of it that is malformed, with the client's bytes.
_NOT_TAKEN: Final = "baggage"

Headers = list[tuple[bytes, bytes]]


class _Getter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        name = key.lower()
        wanted = name.encode("latin-1")
        found = [value.decode("latin-1") for given, value in carrier if given == wanted]
        if not found:
            return None
        if name == "tracestate":  # the only one that may be given in several parts
            return _members(found)
        return found if len(found) == 1 and len(found[0]) <= _LONGEST else None

    def keys(self, carrier: Headers) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier]


_GETTER: Final = _Getter()


def context_of_caller(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """Returns an empty context if the lower-case headers name no valid span."""
    names = _names_read_by(get_global_textmap())
    given = [pair for pair in headers if pair[0] in names]
    return extract(given, Context(), _GETTER) if given else Context()


@cache
def _names_read_by(propagator: TextMapPropagator) -> frozenset[bytes]:
    """Returns the names of the headers that a propagator reads, but for the one not taken."""
    names = {name.lower() for name in propagator.fields} - {_NOT_TAKEN}
    return frozenset(name.encode("latin-1") for name in names)


def _members(values: list[str]) -> list[str] | None:
    """Returns the members of a ``tracestate``; None if they can't all be read."""
    if sum(map(len, values)) > _LONGEST:
        return None
    members = [member.strip(" \t") for value in values for member in value.split(",")]
    members = [member for member in members if member]
    if len(members) > _MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return None
    return [",".join(members)]
