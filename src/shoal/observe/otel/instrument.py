"""Turning tracing on for a batcher, a controller or an application."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from opentelemetry import trace

from shoal.observe.otel.batches import BatchTracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Tracer, TracerProvider

    from shoal.core.events import Observers

SCOPE: Final = "shoal"
"""The name of the instrumentation scope."""


class Observed(Protocol):
    """What has batches: a `shoal.Batcher`, `shoal.Controller` or `shoal.App`."""

    @property
    def observers(self) -> Observers:
        """What is told of its batches."""
        ...


@runtime_checkable
class OfRequests(Protocol):
    """The tracing of what answers requests from the network as well."""

    def begin(self, tracer: Tracer) -> Callable[[], object]:
        """Makes a span for each request; returns what ends that."""
        ...


class Instrumentation:
    """Tracing that is on; see `instrument`."""

    def __init__(self, end: list[Callable[[], object]]) -> None:
        self._end = end

    def uninstrument(self) -> None:
        """Turns it off: spans that are open end now. Idempotent."""
        while self._end:
            self._end.pop()()


def instrument(
    target: Observed, *, tracer_provider: TracerProvider | None = None
) -> Instrumentation:
    """Traces the batches and requests of a batcher, a controller or an application.

    ::

        from shoal.observe import instrument

        instrument(app)

    Each request has a span, with the events ``queue``, ``wait`` and ``run``; each batch has one,
    which is linked to those of its requests, and in which its handler runs. A `shoal.App` also has
    a span for each HTTP request and each WebSocket, which continues the trace of its caller.

    Args:
        target: A `shoal.Batcher`, `shoal.Controller` or `shoal.App`.
        tracer_provider: Makes the tracer; None for the global one, also if that is set later.

    Returns:
        What turns it off again.

    Raises:
        TypeError: The target is nothing that has batches.
        RuntimeError: It is instrumented already.
    """
    observers: Any = getattr(target, "observers", None)
    if not hasattr(observers, "all"):
        raise TypeError(
            "instrument() takes a shoal.Batcher, shoal.Controller or shoal.App, such as\n"
            f"    instrument(app)\nnot {type(target).__name__}"
        )
    if any(isinstance(one, BatchTracer) for one in observers.all):
        raise RuntimeError(
            f"this {type(target).__name__} is instrumented already; call uninstrument() of what "
            "the first instrument() returned"
        )
    tracer = trace.get_tracer(SCOPE, _version(), tracer_provider)
    batches = BatchTracer(tracer)
    end: list[Callable[[], object]] = [batches.end, lambda: observers.remove(batches)]
    of_requests = getattr(target, "tracing", None)
    if isinstance(of_requests, OfRequests):
        end.append(of_requests.begin(tracer))
    observers.add(batches)
    return Instrumentation(end)


def _version() -> str | None:
    try:
        return version("shoal")
    except PackageNotFoundError:  # not installed, but found by a search path
        return None
