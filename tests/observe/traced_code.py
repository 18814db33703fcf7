"""Code for replicas elsewhere, which tells the trace that it runs in."""

from __future__ import annotations

from typing import Any


def current() -> tuple[int, int]:
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id


class Plain:
    """Plain code; calls by a handle if it is given one."""

    def __init__(self, handle: Any = None) -> None:
        self.handle = handle

    def __call__(self, number: int) -> Any:
        return current() if self.handle is None else [current(), self.handle.sync.call(number)]


class Async:
    """The same as async code."""

    def __init__(self, handle: Any = None) -> None:
        self.handle = handle

    async def __call__(self, number: int) -> Any:
        return current() if self.handle is None else [current(), await self.handle.call(number)]


class Plainly:
    """Plain code in a batch, with a step of a stream for each."""

    def __call__(self, numbers: list[int]) -> Any:
        yield [current() for _ in numbers]
        yield [current() for _ in numbers]
