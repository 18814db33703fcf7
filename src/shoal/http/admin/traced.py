"""The traces of the admin API's clients, which calls by their handles continue."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import attach, detach

from shoal.observe.otel.instrument import context_of_caller

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


@contextmanager
def in_trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Generator[None]:
    """Continues the trace that a request's headers name, in this block."""
    token = attach(context_of_caller(headers))
    try:
        yield
    finally:
        detach(token)
