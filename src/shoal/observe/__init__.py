"""Metrics and traces of a running application. The batching engine does not depend on this package.

`instrument` traces a batcher, a controller or an application with OpenTelemetry. It needs the extra
``otel``.
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.observe.otel.instrument import Instrumentation, instrument

__all__ = ["Instrumentation", "instrument"]

_WHERE: Final = {"shoal.observe.otel.instrument": ("instrument", "Instrumentation")}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE, "otel")
