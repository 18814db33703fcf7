"""What the calling code runs in: its batch, its replica and its trace."""

import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from shoal.core.request import Batch, Request
from shoal.errors import WouldDeadlock

T = TypeVar("T")


class Identity(NamedTuple):
    """The tags of a replica and its backend.

    Attributes:
        backend: The tag of its backend.
        replica: The replica's tag, such as ``"embed#3"``; tags are never reused.
        most_requests: How many requests it has at once, if its code takes one item at a time and
            forms batches by itself.
    """

    backend: str
    replica: str
    most_requests: float = math.inf


running_batch: Final[ContextVar[Batch]] = ContextVar("shoal.running_batch")

running_replica: Final[ContextVar[Identity]] = ContextVar("shoal.running_replica")

calls_from_thread: Final[ContextVar[bool]] = ContextVar("shoal.calls_from_thread", default=False)
"""Whether a thread is blocked until the call made in this context is answered."""


def current_batch() -> Batch:
    """Returns the batch that the calling handler runs.

    It works in the handler, in functions that it calls, in tasks that it starts and in the worker
    thread of a plain handler. When the handler has ended, the batch has no requests any more.

    Returns:
        The batch: its id, size and dispatch reason, and its requests with their metadata,
        deadlines, contexts and whether they are cancelled.

    Raises:
        RuntimeError: No handler is running here.
    """
    try:
        return running_batch.get()
    except LookupError:
        raise RuntimeError("current_batch() is for handlers: no batch is running here") from None


def current_model() -> str | None:
    """Returns the model that the calling handler's batch needs; None if its requests name none.

    Raises:
        RuntimeError: No handler is running here.
    """
    requests = current_batch().requests
    options = requests[0].options if requests else None
    if options is None:
        return None
    return options.metadata.get("model") if options.model is None else options.model


def current_backend_tag() -> str:
    """Returns the tag of the backend that the calling code belongs to.

    It works in a backend's constructor, its methods, and the functions that they call, wherever
    the replica runs.

    Raises:
        RuntimeError: No backend is running here.
    """
    return _identity("current_backend_tag").backend


def current_replica_tag() -> str:
    """Returns the tag of the replica that the calling code runs in, such as ``"embed#3"``.

    Raises:
        RuntimeError: No backend is running here.
    """
    return _identity("current_replica_tag").replica


def _identity(function: str) -> Identity:
    try:
        return running_replica.get()
    except LookupError:
        raise RuntimeError(
            f"{function}() works only in a backend's code, and none is running here"
        ) from None


def waiting_batches() -> Iterator[Batch]:
    """Yields the batches with handlers that wait for this code: its own, and its callers'."""
    seen: set[Batch] = set()
    to_see = [running_batch.get(None)]
    while to_see:
        batch = to_see.pop()
        if batch is None or batch in seen:
            continue
        yield batch
        seen.add(batch)
        for leader in batch.members:
            to_see += [request.context.get(running_batch) for request in callers_of(leader)]


def callers_of(request: Request) -> list[Request]:
    """Returns a request, or those of the equal calls that share it."""
    flight = getattr(request.waiter, "flight", None)
    return [request] if flight is None else list(flight.members)


def refuse_own_handler(block: str, runs: Callable[[Batch], bool]) -> None:
    """Raises `WouldDeadlock` if leaving a block would wait for the calling code."""
    if any(map(runs, waiting_batches())):
        raise WouldDeadlock(
            f"a handler leaves the block of {block} in which it runs: the block waits for the "
            "handler; leave it in another task or thread, or when the call has returned"
        )


def time_left(now: Callable[[], float]) -> float | None:
    """Returns the time left to the running batch that makes a call, in seconds, if limited."""
    # Until the last deadline of its requests: a caller still waits before it.
    batch = running_batch.get(None)
    if batch is None:
        return None
    deadlines = [request.deadline for request in batch.members]
    limits = [deadline for deadline in deadlines if deadline is not None]
    if len(limits) < len(deadlines) or not limits:
        return None
    return max(0.0, max(limits) - now())


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Generator[None]:
    """Sets a context variable in a block, and resets it after that."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


# Traces of OpenTelemetry, which is never loaded here.


def trace_headers() -> dict[str, str]:
    """Returns the headers by which a call continues the current trace; none without a trace."""
    # From the program's propagators: by default W3C's `traceparent`, `tracestate` and `baggage`.
    propagate: Any = sys.modules.get("opentelemetry.propagate")
    headers: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(headers)
    return headers


def trace_ids() -> tuple[str, str] | None:
    """Returns the ids of the current trace and span, in hexadecimal; None if there is none."""
    api: Any = sys.modules.get("opentelemetry.trace")
    # The module is there before its names are, while another thread imports it.
    current = None if api is None else getattr(api, "get_current_span", None)
    if current is None:
        return None
    span = current().get_span_context()
    return (f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else None


@contextmanager
def continued(trace: Mapping[str, str] | None) -> Generator[None]:
    """Continues a trace in this block; its headers must be from a trusted program."""
    if not trace:
        yield
        return
    try:
        from opentelemetry import context, propagate
    except ModuleNotFoundError:  # it need not be installed where a replica runs
        yield
        return
    token = context.attach(propagate.extract(trace))
    try:
        yield
    finally:
        context.detach(token)
