"""Prints the spans of a batcher: three callers share a batch, and one of them is traced further.

Run it: ``python -m examples.tracing.console``. It needs ``pip install '.[otel]'``.
"""

from __future__ import annotations

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import shoal
from shoal.observe import instrument


def in_a_line(span: ReadableSpan) -> str:
    """Returns a line about a span: its name, its events and how many links it has."""
    began_at = span.start_time or 0
    events = [
        f"{event.name} at {(event.timestamp - began_at) / 1e6:.0f} ms" for event in span.events
    ]
    links = [f"{len(span.links)} links"] if span.links else []
    return f"{span.name}: {', '.join([*events, *links]) or 'a caller'}\n"


async def lengths(texts: list[str]) -> list[int]:
    with trace.get_tracer("example").start_as_current_span("the model"):
        await anyio.sleep(0.05)
        return [len(text) for text in texts]


async def call_from(name: str, call: shoal.UnaryCall[[str], int], text: str) -> None:
    with trace.get_tracer("example").start_as_current_span(name):
        await call(text)


async def main() -> None:
    batcher = shoal.Batcher(lengths, max_batch_size=3, batch_wait_timeout_s=0.1)
    instrument(batcher)
    async with batcher as call, anyio.create_task_group() as tasks:
        for name in ("first", "second", "third"):
            tasks.start_soon(call_from, name, call, f"the {name} text")


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=in_a_line)))
    trace.set_tracer_provider(provider)
    anyio.run(main)
