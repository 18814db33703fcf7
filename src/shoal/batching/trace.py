"""Traces of OpenTelemetry, in programs that use it.

A program that does not import OpenTelemetry never loads it by what is here.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


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
