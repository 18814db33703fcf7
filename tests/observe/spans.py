"""Spans that are kept, and an application whose requests have some."""

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import shoal
from shoal.observe import instrument


class Spans:
    """A provider whose spans are kept, and what they are."""

    def __init__(self, sampler=None):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def ending(self, name):
        return [one for one in self.exporter.get_finished_spans() if one.name.endswith(name)]

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture(name="spans")
def new_spans():
    return Spans()


def ids(span):
    found = span.context if hasattr(span, "context") else span
    return found.trace_id, found.span_id


def linked(span):
    return {ids(link.context) for link in span.links}


def events(span):
    began_at = span.start_time
    return {event.name: round((event.timestamp - began_at) / 1e9, 3) for event in span.events}


def traced_app(spans, **options):
    app = shoal.App(**options)

    @app.endpoint("/double/{name}", max_batch_size=4)
    async def double(items: list[int]) -> list[int]:
        if 0 in items:
            raise ZeroDivisionError
        return [2 * item for item in items]

    @app.endpoint("/letters")
    async def letters(texts: list[str]):
        for letter in texts[0]:
            yield [letter]

    @app.endpoint("/held")
    async def held(items: list[int]) -> list[int]:
        await anyio.sleep_forever()
        return items

    app.endpoint("/full", name="full", max_batch_size=1, max_queued_requests=0)(held)
    instrument(app, tracer_provider=spans.provider)
    return app
