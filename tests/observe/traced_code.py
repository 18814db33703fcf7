"""Code for replicas elsewhere, which tells the trace that it runs in."""

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
    def __init__(self, handle: Any = None) -> None:
        self.handle = handle

    async def __call__(self, number: int) -> Any:
        return current() if self.handle is None else [current(), await self.handle.call(number)]


class Plainly:
    """Plain code in a batch, with a step of a stream for each."""

    def __call__(self, numbers: list[int]) -> Any:
        yield [current() for _ in numbers]
        yield [current() for _ in numbers]


class Asyncly:
    async def __call__(self, numbers: list[int]) -> Any:
        yield [current() for _ in numbers]
        yield [current() for _ in numbers]


class Exporting:
    """Makes a span of its own for each batch, and calls by a handle within it.

    Its constructor sets up what exports the span, as where nothing else has set it up."""

    def __init__(self, url: str, handle: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        trace.set_tracer_provider(provider)
        self.tracer = trace.get_tracer("mine")
        self.handle = handle

    async def __call__(self, numbers: list[int]) -> list[Any]:
        with self.tracer.start_as_current_span("inside"):
            return [await self.handle.call(number) for number in numbers]
