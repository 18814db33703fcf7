"""Turns tracing on for a batcher, a batched function, a controller or an application."""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from opentelemetry import trace

from shoal.observe.otel.batches import BatchTracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Tracer, TracerProvider

    from shoal.core.events import BatchObserver, Observers

SCOPE: Final = "shoal"
"""The name of the instrumentation scope."""


class Observed(Protocol):
    """A `shoal.Batcher`, `shoal.Controller` or `shoal.App`."""

    @property
    def observers(self) -> Observers: ...


@runtime_checkable
class OfBatchers(Protocol):
    """Observes batchers that are opened and closed as a program runs."""

    def begin(self, kind: object, new_observer: Callable[[], BatchObserver]) -> None:
        """Adds an observer to each; raises `KeyError` if they have one of the kind."""
        ...

    def end(self, kind: object) -> list[BatchObserver]:
        """Removes these observers, and returns them."""
        ...


class Batched(Protocol):
    """A function that is decorated with `shoal.batch`."""

    @property
    def watches(self) -> OfBatchers | None:
        """None for a method of one instance."""
        ...


@runtime_checkable
class OfRequests(Protocol):
    """Traces requests from the network."""

    def begin(self, tracer: Tracer) -> Callable[[], object]:
        """Makes a span for each request, until the returned function is called."""
        ...


class Instrumentation:
    """Tracing that is on, as `instrument` returns it."""

    def __init__(self, end: list[Callable[[], object]]) -> None:
        self._end = end

    def uninstrument(self) -> None:
        """Turns it off: open spans end now. Idempotent."""
        while self._end:
            self._end.pop()()


def instrument(
    target: Observed | Batched, *, tracer_provider: TracerProvider | None = None
) -> Instrumentation:
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
    tracer = trace.get_tracer(SCOPE, _version(), tracer_provider)
    if hasattr(type(target), "watches"):
        return _instrument_batchers(target, tracer)
    observers: Any = getattr(target, "observers", None)
    if not hasattr(observers, "all"):
        raise TypeError(
            "instrument() takes a shoal.Batcher, a function decorated with @shoal.batch, a "
            f"shoal.Controller or a shoal.App, such as\n    instrument(app)\nnot "
            f"{type(target).__name__}"
        )
    if any(isinstance(one, BatchTracer) for one in observers.all):
        raise _instrumented_already(target)
    batches = BatchTracer(tracer)
    end: list[Callable[[], object]] = [batches.end, lambda: observers.remove(batches)]
    of_requests = getattr(target, "tracing", None)
    if isinstance(of_requests, OfRequests):
        end.append(of_requests.begin(tracer))
    observers.add(batches)
    return Instrumentation(end)


def _instrument_batchers(target: Any, tracer: Tracer) -> Instrumentation:
    watches: OfBatchers | None = target.watches
    if watches is None:
        raise TypeError(
            f"instrument() takes a method of all instances, such as\n    instrument("
            f"{target.__qualname__})\nnot that of one instance"
        )
    try:
        watches.begin(BatchTracer, partial(BatchTracer, tracer))
    except KeyError:
        raise _instrumented_already(target) from None

    def end() -> None:
        for observer in watches.end(BatchTracer):
            if isinstance(observer, BatchTracer):
                observer.end()

    return Instrumentation([end])


def _instrumented_already(target: object) -> RuntimeError:
    return RuntimeError(
        f"this {type(target).__name__} is instrumented already; call uninstrument() of what "
        "the first instrument() returned"
    )


def _version() -> str | None:
    try:
        return version("shoal")
    except PackageNotFoundError:  # not installed, but found by a search path
        return None
