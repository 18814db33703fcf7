"""``--otel``: traces and metrics of a server, exported with OpenTelemetry's protocol."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final

from shoal.commands.support.mistake import CommandError, as_mistakes
from shoal.core.extras import needing

if TYPE_CHECKING:
    from collections.abc import Generator

    from opentelemetry.sdk.metrics.export import MetricExporter

    from shoal.http.app.app import App

_LAST_EXPORT_S: Final = 3.0


class Telemetry:
    """Exports the metrics of a server."""

    def __init__(self, app: App, exporter: MetricExporter | None) -> None:
        self._app = app
        self._exporter = exporter

    async def export_metrics(self) -> None:
        from shoal.observe.otel.metrics import export_metrics

        if self._exporter is not None:
            await export_metrics(self._app, exporter=self._exporter)


@contextmanager
def exported(given: object, app: App | None) -> Generator[Telemetry]:
    """Traces an application, and exports its spans, for this block."""
    if app is None:
        raise CommandError(
            f"{type(given).__name__} is not a shoal.App; leave out --otel, which needs one"
        )
    try:
        with needing("--otel", "otel"):
            from shoal.observe.otel.instrument import instrument
            from shoal.observe.otel.providers import metric_exporter, set_up_traces
    except ModuleNotFoundError as error:
        raise CommandError(str(error), 1) from None
    with as_mistakes():
        provider, exporter = set_up_traces(), metric_exporter()
    try:
        # An application may have turned tracing on itself.
        tracing = None if app.tracing.tracer is not None else instrument(app)
        yield Telemetry(app, exporter)
        if tracing is not None:
            tracing.uninstrument()
    finally:
        if provider is not None:
            # In a daemon thread: the collector may not answer.
            last_export = Thread(target=provider.shutdown, daemon=True)
            last_export.start()
            last_export.join(_LAST_EXPORT_S)
