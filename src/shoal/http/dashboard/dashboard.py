"""The dashboard: a read-only page that shows what a running server does.

It is beside the admin API, for callers with access to that. At the application's own
address ``dashboard=True`` turns it on. By default it is there only at a server of this package that
listens at a loopback address or a UNIX socket, and only for requests from this machine, as far as
that can be seen, as for the admin API without a token.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from shoal.asgi.extensions import DISCONNECT
from shoal.http.admin.guard import Guard
from shoal.http.requests.dispatch import Page
from shoal.http.requests.problem import Problem, Refused
from shoal.observe.failures import FailureLog
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.dashboard.feed import Feed
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.controller.controller import Controller

# The path of the page; its feed and its files are below.
DASHBOARD: Final = f"{RESERVED}/dashboard"

FILES: Final = (
    *("dashboard.css", "dashboard.js", "charts.js", "feed.js", "tables.js", "text.js"),
    *("timeline.js", "watch.js", "uPlot.iife.min.js", "uPlot.min.css"),
)

# Its page may load its files and its feed, and nothing else. Its scripts set styles on elements by
# the object model, which needs no permission.
_POLICY: Final = (
    "script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "require-trusted-types-for 'script'"
)
_PACKAGE: Final = "shoal.http.dashboard"
_KEPT_S: Final = 3600  # how long browsers may keep the files of others, which rarely change
_LOCAL: Final = Guard(None)


class Dashboard:
    def __init__(self, options: HttpOptions, controller: Callable[[], Controller | None]) -> None:
        self._options = options
        self._controller = controller
        self._failures = FailureLog()

    def observe(self, controller: Controller) -> None:
        controller.observers.add(self._failures, only_failures=True)

    def is_public_to(self, scope: Scope) -> bool:
        """Returns whether a request to the application's own address may see it."""
        if self._options.dashboard is not None:
            return self._options.dashboard
        if not scope.get("extensions", {}).get(DISCONNECT, {}).get("is_local", False):
            return False
        try:
            _LOCAL.check(scope, changes=False)
        except Refused:
            return False
        return True

    def check_public(self, exchange: Exchange) -> None:
        if not self.is_public_to(exchange.scope):
            title = "The dashboard is not public here"
            detail = (
                "The operator can see it at the admin socket (--admin-socket), or allow it here "
                "with dashboard=True."
            )
            raise Refused(Problem(403, "dashboard-not-public", title, detail))

    def pages(
        self, check: Callable[[Exchange], object], *, is_public: bool = False
    ) -> dict[str, Page]:
        """Returns the page, its feed and its files by path, for requests that pass a check."""
        page = Page(partial(self._handle, check, is_public=is_public))
        paths = [DASHBOARD, *(f"{DASHBOARD}/{name}" for name in ("feed", *FILES))]
        return dict.fromkeys(paths, page)

    async def _handle(
        self, check: Callable[[Exchange], object], exchange: Exchange, *, is_public: bool
    ) -> None:
        from shoal.http.openapi.pages import index_page, page_file

        check(exchange)
        name = exchange.scope["path"].rpartition("/")[2]
        if name == "feed":
            await self._feed.handle(exchange, is_public=is_public)
        elif name == "dashboard":
            await exchange.respond(200, *index_page(_PACKAGE, self._options.title, _POLICY))
        else:
            accept = exchange.headers.get(b"accept-encoding", b"")
            max_age_s = _KEPT_S if name.startswith("uPlot") else 0
            await exchange.respond(200, *page_file(_PACKAGE, name, accept, max_age_s))

    @cached_property
    def _feed(self) -> Feed:
        from shoal.http.dashboard.feed import Feed

        return Feed(self._controller, self._failures)
