"""The exporter of a server's spans, as OpenTelemetry's environment variables name it.

A program sets its own provider, or is started by ``opentelemetry-instrument``. ``shoal serve
--otel`` makes one if none is set yet. Spans leave the process in a thread, so that a slow or
unreachable collector delays nothing: spans that it does not accept are dropped.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

_PROTOCOL: Final = "http/protobuf"
_KNOWN: Final = ("otlp", "console", "none")


def resource() -> Resource:
    """Returns the producer of the telemetry: by default the service ``shoal``."""
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create() if named else Resource.create({"service.name": "shoal"})


def set_up_traces() -> TracerProvider | None:
    """Sets a global provider that exports spans, unless there is one; shut it down."""
    exporter = _span_exporter()
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    provider = _provider(exporter, shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    if entry_points(group="opentelemetry_tracer_provider", name="shoal"):
        # For the processes of replicas, which inherit it.
        os.environ.setdefault("OTEL_PYTHON_TRACER_PROVIDER", "shoal")
    return provider


def provider_of_replica() -> TracerProvider:
    # OpenTelemetry finds it by the name ``shoal`` in ``OTEL_PYTHON_TRACER_PROVIDER``.
    return _provider(_span_exporter())


def _provider(exporter: SpanExporter | None, *, shutdown_on_exit: bool = True) -> TracerProvider:
    provider = TracerProvider(resource=resource(), shutdown_on_exit=shutdown_on_exit)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _span_exporter() -> SpanExporter | None:
    kind = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if kind not in _KNOWN:
        raise ValueError(f"OTEL_TRACES_EXPORTER must be otlp, console or none, not {kind!r}")
    if kind == "none":
        return None
    if kind == "console":
        return ConsoleSpanExporter()
    for protocol in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        given = os.environ.get(protocol, "").strip() or _PROTOCOL
        if given != _PROTOCOL:
            raise ValueError(f"{protocol} must be {_PROTOCOL}, not {given!r}")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
