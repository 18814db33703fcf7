"""The requests that the server refuses itself, so that they never reach the application.

They are malformed, for another host, or too slow. If the application has a method
``count_refusal``, it is called for each with the status of the response and the seconds that the
request took. The access log has a line for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.server.access_log import Entry, protocol_of
from shoal.server.log_errors import contained

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from shoal.server.proxies import ProxyHeaders


class Refusals:
    def __init__(self, app: ASGIApp, proxies: ProxyHeaders | None, *, is_logged: bool) -> None:
        known: Any = app
        self._count_by = known.count_refusal if hasattr(type(app), "count_refusal") else None
        self._proxies = proxies
        self._is_logged = is_logged

    def count(self, status: int, took_s: float = 0.0) -> None:
        if self._count_by is not None:
            with contained("a refused request could not be counted"):
                self._count_by(status, took_s)

    def note(self, scope: Scope, status: int, size: int, took_s: float) -> None:
        """Counts and logs a refusal; the scope's ``method`` and ``path`` may be None."""
        self.count(status, took_s)
        if not self._is_logged:
            return
        with contained("the access log failed"):  # handlers and filters of logs are the user's
            scope = {**scope, "headers": list(scope["headers"])}
            if self._proxies is not None and scope["path"] is not None:
                self._proxies.complete(scope)
            entry = Entry(took_s)
            entry.note_answer(status, b"", size)
            method = scope.get("method", "GET")
            entry.write(protocol_of(scope), method, scope["path"], scope["client"])
