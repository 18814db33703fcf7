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
    "Instrumentation": "shoal.observe.otel.instrument",
    "export_metrics": "shoal.observe.otel.metrics",
    "instrument": "shoal.observe.otel.instrument",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE, "otel")
