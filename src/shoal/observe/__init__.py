"""Metrics and traces of a running application. The batching engine does not depend on this package.

`instrument` traces a batcher, a controller or an application with OpenTelemetry, and
`export_metrics` exports the metrics by its protocol. Both need the extra ``otel``.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.observe.otel.instrument import Instrumentation, instrument
    from shoal.observe.otel.metrics import export_metrics

__all__ = ["Instrumentation", "export_metrics", "instrument"]

_WHERE: Final = {
    "shoal.observe.otel.instrument": ("instrument", "Instrumentation"),
    "shoal.observe.otel.metrics": ("export_metrics",),
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE, "otel")
