"""Whether requests to an application have spans; if not, OpenTelemetry is not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import Tracer
    from starlette.types import ASGIApp

    from shoal.http.app.traced import RequestTracer


class AppTracing:
    """The tracing of an application's requests, which `shoal.observe.instrument` turns on.

    Args:
        apps: The application for requests, and for WebSockets, by the type of the scope.
        path_of: Returns the declared path for a request's path and method; None if there is none.

    Attributes:
        entered: These applications, within what makes the spans, if that is on.
        tracer: What makes the spans; None while it is off.
    """

    def __init__(
        self, apps: Mapping[str, ASGIApp], path_of: Callable[[str, str], str | None]
    ) -> None:
        self.entered = apps
        self.tracer: RequestTracer | None = None
        self._path_of = path_of

    def begin(self, tracer: Tracer) -> Callable[[], object]:
        """Makes a span for each request from now on; returns what ends that."""
        from shoal.http.app.traced import RequestTracer

        untraced = self.entered
        self.tracer = RequestTracer(tracer, self._path_of)
        self.entered = {kind: self.tracer.around(app) for kind, app in untraced.items()}

        def end() -> None:
            self.entered, self.tracer = untraced, None

        return end
