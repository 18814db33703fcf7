"""The dispatcher: answers one HTTP request by its route, and errors by problems."""

from __future__ import annotations

import itertools
import logging
import secrets
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shoal.batching.calls.leaving import CallerLeft
from shoal.core.request_times import LEFT, RequestTimes
from shoal.errors import ShutDown
from shoal.failures.held import holding
from shoal.http.requests.departures import Departures
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.incomplete import IncompleteBodies
from shoal.http.requests.problem import (
    Refused,
    explained,
    method_not_allowed,
    method_unknown,
    not_found,
)
from shoal.http.requests.routing import Found, Route
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop
from shoal.observe.metrics import NO_ENDPOINT, StreamTimes
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.problem import Problem

_HOLDING: Final = holding()
_log: Final = logging.getLogger("shoal.http")


class RouteDispatcher:
    """Calls the route of a request, turns errors into answers, and counts the requests.

    Args:
        settings: The options of the server.

    Attributes:
        settings: As above.
        departures: Notices clients that leave, on servers that do not tell.
        incomplete: Bounds what is held of incomplete bodies.
        times: How long requests took.
        streams: The times of streams.
        now: The clock for the times of requests: the event loop's, unless that is a coarse one.
        new_id: Returns an id: unique among processes that share a log, and cheap to make.
    """

    def __init__(self, settings: HttpOptions) -> None:
        self.now: Callable[[], float] = perf_counter
        self.times = RequestTimes()
        self.streams = StreamTimes()
        self.settings = settings
        self.departures = Departures()
        self.incomplete = IncompleteBodies(settings)
        self._new_exchange = exchanges_of(settings)
        form = secrets.token_hex(4).encode("ascii") + b"-%x"
        self.new_id: Callable[[], bytes] = map(form.__mod__, itertools.count(1)).__next__

    def begin(self) -> None:
        """Prepares for requests in the running event loop."""
        parking = parking_of_this_loop()
        self.now = perf_counter if parking.is_coarse else parking.now

    def keep_counts_of(self, endpoints: Iterable[str]) -> None:
        """Forgets what was counted of other endpoints, which were deleted."""
        kept = {*endpoints, NO_ENDPOINT}
        self.times.keep(kept)
        self.streams.keep(kept)

    @holds_ctrl_c
    async def answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        found: Found[Route] | None,
        departures: Departures | None = None,
    ) -> None:
        """Answers a request by its route, what that raises by a problem, and counts the request.

        Args:
            scope: The ASGI scope.
            receive: The ASGI callable.
            send: The ASGI callable.
            found: The routes at the request's path; None if there are none.
            departures: Watches the client if the server does not; None for its own.
        """
        route: Route | None = None
        if found is not None:
            route = found.routes.get(scope["method"])
            if found.params:
                params = {**scope.get("path_params", {}), **found.params}
                scope = {**scope, "path_params": params}
        if route is None:
            route = _other_route(scope, None if found is None else found.routes)
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
        """Counts a request that the server has answered itself.

        Args:
            status: The status of the answer.
            took_s: How long the request took, in seconds.
        """
        self.times.count(NO_ENDPOINT, "other", status, took_s)

    async def _answer_failure(self, exchange: Exchange, route: Route, error: Exception) -> None:
        """Answers a request that has failed by a problem, unless its client has left.

        Raises:
            Exception: It is too late for another answer; the server aborts the connection.
        """
        try:
            if isinstance(error, CallerLeft):
                if not exchange.is_cut_off:
                    raise error
                error = ShutDown("the server ends")
            with _HOLDING:
                name = (exchange.counted or route).name
                problem = explained(error, self.settings, name, exchange.request_id)
            if exchange.status:
                exchange.status = 500  # for who counts it: the client does not get the rest
                raise error
            media_type, body = route.problem(problem, exchange.request_id)
            await exchange.answer(problem.status, media_type, body, problem.headers)
        except CallerLeft as left:
            if not (exchange.tells_of_disconnect or exchange.status):
                with suppress(CallerLeft):  # which middleware may insist on, and servers drop
                    await exchange.answer_without_body(LEFT)
            exchange.status = exchange.refused_with or LEFT
            _log.debug("%s: request %s: %s", route.name, exchange.request_id, left)
        finally:
            del error  # its traceback holds this frame

    async def answer_by(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls an application; its `HTTPException` is answered as one of a route would be."""
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, begin)
        except Exception as refusal:
            # Not at the start: it loads a client of HTTP.
            from starlette.exceptions import HTTPException

            is_refusal = isinstance(refusal, HTTPException)
            if not is_refusal or has_begun or scope["type"] != "http":
                raise
            await self.answer(
                scope, receive, send, Found[Route]({scope["method"]: _Refusal(refusal)}, {})
            )


def exchanges_of(settings: HttpOptions) -> type[Exchange]:
    """Returns the class of an application's exchanges."""
    if settings.server_timing == "never":
        return Exchange
    from shoal.http.requests.timed import TimedExchange

    return TimedExchange


class _Refusal(Route):
    """A route that refuses its requests: by a problem, or as a mounted application did.

    Args:
        refusal: What is raised.
        other: A route for other methods at the path, in whose form the problem is; None for Shoal's
            own form.
    """

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
    """Answers ``OPTIONS`` with the methods of a path; with none if it is about the server."""

    def __init__(self, routes: Mapping[str, Route] | None) -> None:
        super().__init__()
        self._routes = routes

    @override
    async def answer(self, exchange: Exchange) -> None:
        allow = (b"allow", ", ".join(_allowed(self._routes)).encode("ascii"))
        await exchange.answer_without_body(204, [allow] if self._routes else [])


def _other_route(scope: Scope, routes: Mapping[str, Route] | None) -> Route:
    """Returns the route for a request whose method has no route of its own."""
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
    problem = method_not_allowed(_allowed(routes)) if is_known else method_unknown()
    return _Refusal(Refused(problem), next(iter(routes.values()), None))


def _allowed(routes: Mapping[str, Route] | None) -> list[str]:
    """Returns the methods that a path with these routes accepts."""
    methods = {"OPTIONS", *(routes or ())}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)
