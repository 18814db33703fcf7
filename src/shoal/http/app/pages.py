"""The application's own pages under ``/-/``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from shoal.http.app import health
from shoal.http.requests.routing import Page
from shoal.observe.metrics import ShoalCollector
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shoal.core.counters import BatcherStatistics
    from shoal.http.app.declarations import Declarations
    from shoal.http.app.health import Phase
    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.routing import Routes
    from shoal.http.requests.settings import HttpSettings
    from shoal.serving.controller.controller import Controller
    from shoal.serving.status import Status


class Pages:
    """Adds the pages to the routes of an application.

    Args:
        routes: The routes that they are added to.
        declared: The application's declarations.
        dispatcher: The dispatcher that counts answers.
        settings: The application's settings.
        now: Returns the application's phase, and its controller, or None if it has had none.
    """

    def __init__(
        self,
        routes: Routes,
        declared: Declarations,
        dispatcher: RouteDispatcher,
        settings: HttpSettings,
        now: Callable[[], tuple[Phase, Controller | None]],
    ) -> None:
        self._routes = routes
        self._declared = declared
        self._settings = settings
        self._now = now
        registry = CollectorRegistry()
        registry.register(ShoalCollector(self._statistics, dispatcher.answers, self._status))
        pages: dict[str, Callable[[Exchange], Awaitable[None]]] = {
            "healthz": health.answer_alive,
            "readyz": self._answer_ready,
            "metrics": partial(health.answer_metrics, registry=registry),
            "routes": self._answer_routes,
        }
        for name, answer in pages.items():
            routes.add(f"{RESERVED}/{name}", ("GET",), Page(answer))

    def _statistics(self) -> Iterator[tuple[str, BatcherStatistics]]:
        _, controller = self._now()
        if controller is not None:
            for backend in controller.backends.values():
                for method_batcher in backend.method_batchers.values():
                    yield method_batcher.batcher.name, method_batcher.batcher.statistics()

    def _status(self) -> Status | None:
        _, controller = self._now()
        return None if controller is None else controller.status_now()

    async def _answer_ready(self, exchange: Exchange) -> None:
        phase, controller = self._now()
        await health.answer_ready(exchange, phase, controller, debug=self._settings.debug)

    async def _answer_routes(self, exchange: Exchange) -> None:
        phase, controller = self._now()
        is_up = phase in ("open", "draining")
        shown = controller if is_up else None
        await health.answer_routes(exchange, self._declared, shown, self._routes.mounts)
