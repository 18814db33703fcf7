"""What is passed on with a call: its time limit, and the trace of the request that made it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.batching.current import current_batch
from shoal.batching.trace import trace_headers
from shoal.core.options.checks import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.core.request import Request

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACESTATE: Final = re.compile(r"[\t\x20-\x7e]{1,512}")
# How far the clock of a server may be ahead, in seconds.
_SKEW_S: Final = 0.1


class TimeLimit:
    """When a call must have ended.

    The call's own limit counts, or the deadline of the caller's cancel scope if that is earlier.

    Args:
        timeout_s: The call's own limit, in seconds; infinity for none.

    Attributes:
        own: When the call's own limit ends, on the event loop's clock.
    """

    def __init__(self, timeout_s: float) -> None:
        self.own = anyio.current_time() + seconds("timeout_s", timeout_s)
        self._scopes = anyio.current_effective_deadline()

    @property
    def left_s(self) -> float:
        """The seconds that are left; infinity if there is no limit."""
        return max(0.0, min(self.own, self._scopes) - anyio.current_time())

    def header(self) -> dict[str, str]:
        """Returns the header that passes the limit on; nothing if there is none."""
        left_s = self.left_s
        if left_s >= 1e9:
            return {}
        # Rounded up: where the limit is the scope's, the scope should tell of it.
        return {"x-request-timeout": f"{math.ceil(left_s * 1000) / 1000:.3f}"}

    async def let_scope_end(self) -> None:
        """Lets the caller's cancel scope tell that its time is over, if it is.

        The server was told of the scope's deadline, and may have been a moment earlier.
        """
        if self._scopes < self.own and self._scopes - anyio.current_time() < _SKEW_S:
            await anyio.sleep_until(self._scopes)


def request_of(given: Request | None) -> Request | None:
    """Returns the request that the calling code answers, if that is clear.

    Args:
        given: The one that was named.

    Returns:
        The one that was named, or the only one of the batch that the calling handler runs.
    """
    if given is not None:
        return given
    try:
        requests = current_batch().requests
    except RuntimeError:
        return None
    return requests[0] if len(requests) == 1 else None


def trace_of(request: Request | None) -> dict[str, str]:
    """Returns the headers that continue the current trace, or that of a request.

    The current trace is that of a program that uses OpenTelemetry. Another passes on what a request
    that came over HTTP has. Headers that are no valid trace context, as of W3C, are dropped then:
    another client has sent them.
    """
    current = trace_headers()
    if "traceparent" in current or request is None:
        return current
    headers = cast("Mapping[str, Any]", request.metadata.get("headers") or {})
    parent, state = headers.get("traceparent"), headers.get("tracestate")
    if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
        return {}
    if not isinstance(state, str) or not _TRACESTATE.fullmatch(state):
        return {"traceparent": parent}
    return {"traceparent": parent, "tracestate": state}
