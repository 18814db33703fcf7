"""Turns the spans of requests on and off; OpenTelemetry is not loaded before that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import Tracer
    from starlette.types import ASGIApp

    from shoal.http.app.traced import RequestTracer


class AppTracing:
    """The tracing of an application's requests, which `shoal.observe.instrument` turns on."""

    def __init__(
        self, apps: Mapping[str, ASGIApp], path_of: Callable[[str, str], str | None]
    ) -> None:
        # The applications by the type of the scope, wrapped while tracing is on.
        self.entered = apps
        self.tracer: RequestTracer | None = None
        self._path_of = path_of

    def begin(self, tracer: Tracer) -> Callable[[], object]:
        """Makes a span for each request from now on; returns a function that stops that."""
        from shoal.http.app.traced import RequestTracer

        untraced = self.entered
        self.tracer = RequestTracer(tracer, self._path_of)
        self.entered = {kind: self.tracer.around(app) for kind, app in untraced.items()}

        def end() -> None:
            self.entered, self.tracer = untraced, None

        return end
