"""The dispatcher: calls the route of an HTTP request, and turns errors into problems."""

from __future__ import annotations

import itertools
import logging
import secrets
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shoal.batching.calls.leaving import CallerLeft
from shoal.core.histogram import LEFT, RequestTimes
from shoal.errors import ShutDown
from shoal.failures.held import holding
from shoal.http.requests.departures import Departures
from shoal.http.requests.exchange import Exchange, IncompleteBodies
from shoal.http.requests.problem import (
    Problem,
    Refused,
    explained,
    method_not_allowed,
    not_found,
)
from shoal.http.requests.routing import PathMatch, Route
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop
from shoal.observe.metrics import NO_ENDPOINT, StreamTimes
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.asgi.http_options import HttpOptions

_HOLDING: Final = holding()
_log: Final = logging.getLogger("shoal.http")


class RouteDispatcher:
    """Calls the route of a request, turns errors into responses, and counts the requests."""

    def __init__(self, settings: HttpOptions) -> None:
        # The event loop's clock once it has begun, unless that is coarse.
        self.now: Callable[[], float] = perf_counter
        self.times = RequestTimes()
        self.streams = StreamTimes()
        self.settings = settings
        self.departures = Departures()
        self.incomplete = IncompleteBodies(settings)
        self._new_exchange = Exchange
        if settings.server_timing != "never":
            from shoal.http.requests.timed import TimedExchange

            self._new_exchange = TimedExchange
        # Ids are unique among processes that share a log, and cheap to make.
        form = secrets.token_hex(4).encode("ascii") + b"-%x"
        self.new_id: Callable[[], bytes] = map(form.__mod__, itertools.count(1)).__next__

    def begin(self) -> None:
        """Prepares for requests in the running event loop."""
        parking = parking_of_this_loop()
        self.now = perf_counter if parking.is_coarse else parking.now

    def keep_counts_of(self, endpoints: Iterable[str]) -> None:
        """Drops the counts of deleted endpoints."""
        names = {*endpoints, NO_ENDPOINT}
        self.times.keep(names)
        self.streams.keep(names)

    @holds_ctrl_c
    async def answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        match: PathMatch[Route] | None,
        departures: Departures | None = None,
    ) -> None:
        """Answers a request; `departures` watches its client in place of the dispatcher's own."""
        route: Route | None = None
        if match is not None:
            route = match.routes.get(scope["method"])
            if match.params:
                params = {**scope.get("path_params", {}), **match.params}
                scope = {**scope, "path_params": params}
        if route is None:
            route = _other_route(scope, None if match is None else match.routes)
        exchange = self._new_exchange(self, scope, receive, send, departures)
        try:
            try:
                await route.answer(exchange)
            except BaseException:
                with _HOLDING:  # the classes of items and results may do anything
                    raise
        except Exception as error:
            await self._answer_failure(exchange, route, error)
        finally:
            if exchange.status:  # else it has no answer
                counted = exchange.counted or route
                took_s = self.now() - exchange.began_at
                self.times.count(
                    counted.name, counted.protocol, exchange.status, took_s, exchange.headers
                )

    def count_refusal(self, status: int, took_s: float) -> None:
        """Counts a request that the server has answered itself."""
        self.times.count(NO_ENDPOINT, "other", status, took_s)

    async def _answer_failure(self, exchange: Exchange, route: Route, error: Exception) -> None:
        """Raises `error` if it is too late for another response."""
        try:
            if isinstance(error, CallerLeft):
                if not exchange.is_cut_off:
                    raise error
                error = ShutDown("the server ends")
            with _HOLDING:
                name = (exchange.counted or route).name
                problem = explained(error, self.settings, name, exchange.request_id)
            if exchange.status:
                exchange.status = 500  # for the metrics: the client does not get the rest
                raise error
            media_type, body = route.problem(problem, exchange.request_id)
            await exchange.answer(problem.status, media_type, body, problem.headers)
        except CallerLeft as left:
            if not (exchange.tells_of_disconnect or exchange.status):
                with suppress(CallerLeft):  # some middleware requires a response; servers drop it
                    await exchange.answer_without_body(LEFT)
            exchange.status = exchange.refused_with or LEFT
            _log.debug("%s: request %s: %s", route.name, exchange.request_id, left)
        finally:
            del error  # its traceback holds this frame

    async def answer_by(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls an application, whose `HTTPException` becomes a problem."""
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, begin)
        except Exception as refusal:
            # Imported late: it loads an HTTP client.
            from starlette.exceptions import HTTPException

            is_refusal = isinstance(refusal, HTTPException)
            if not is_refusal or has_begun or scope["type"] != "http":
                raise
            await self.answer(
                scope, receive, send, PathMatch[Route]({scope["method"]: _Refusal(refusal)}, {})
            )


class _Refusal(Route):
    """Raises for its requests; problems have the form of the route `other`, if given."""

    def __init__(self, refusal: Exception, other: Route | None = None) -> None:
        super().__init__()
        self._refusal = refusal
        self._other = other

    @override
    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        if self._other is None:
            return super().problem(problem, request_id)
        return self._other.problem(problem, request_id)

    @override
    async def answer(self, exchange: Exchange) -> None:
        try:
            raise self._refusal
        finally:
            del self._refusal  # its traceback holds this frame


class _Methods(Route):
    """Answers ``OPTIONS``: without ``Allow`` if the request is about the server."""

    def __init__(self, routes: Mapping[str, Route] | None) -> None:
        super().__init__()
        self._routes = routes

    @override
    async def answer(self, exchange: Exchange) -> None:
        allow = (b"allow", ", ".join(_allowed(self._routes)).encode("ascii"))
        await exchange.answer_without_body(204, [allow] if self._routes else [])


def _other_route(scope: Scope, routes: Mapping[str, Route] | None) -> Route:
    method = scope["method"]
    if routes is None:
        if method == "OPTIONS" and scope["path"] == "*":  # asks about the server as a whole
            return _Methods(None)
        return _Refusal(Refused(not_found()))
    if method == "HEAD" and "GET" in routes:
        return routes["GET"]
    if method == "OPTIONS":
        return _Methods(routes)
    is_known = method in METHODS or method in ("CONNECT", "QUERY", "TRACE")
    problem = method_not_allowed(_allowed(routes)) if is_known else Problem.of("method-unknown")
    return _Refusal(Refused(problem), next(iter(routes.values()), None))


def _allowed(routes: Mapping[str, Route] | None) -> list[str]:
    methods = {"OPTIONS", *(routes or ())}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)
