"""Routes, by path and method, and the dispatcher, which calls the route of an HTTP request.

What a route raises becomes a problem. A path may have parameters, as in Starlette:
``/users/{id:int}``. Such paths come after the others, in the order of their declaration, until one
has a route for the request's method. The application's routes take precedence over mounted
applications.
"""

from __future__ import annotations

import logging
import math
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from shoal.batching.calls.leaving import CallerLeft
from shoal.core.histogram import LEFT, NO_ENDPOINT
from shoal.errors import ShutDown
from shoal.failures.held import holding
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.problem import (
    Problem,
    Refused,
    method_not_allowed,
    problem_json,
    problem_of,
)
from shoal.loops.event_loop import holds_ctrl_c
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from starlette.convertors import Convertor
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.http.requests.shared_parts import SharedParts

_HOLDING: Final = holding()
_log: Final = logging.getLogger("shoal.http")

R = TypeVar("R")


class Route(ABC):
    """Answers the requests with one method at a path; counted under its name and protocol."""

    protocol: ClassVar[str] = "other"

    def __init__(self, name: str = NO_ENDPOINT) -> None:
        self.name = name

    @abstractmethod
    async def handle(self, exchange: Exchange) -> None:
        """Raises `CallerLeft` if the client is gone, or did not read in time."""

    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        """Returns the media type and the body of the response to a failed request."""
        return problem_json(problem, request_id)


class Page(Route):
    """A route of the application itself, other than an endpoint."""

    def __init__(self, handle: Callable[[Exchange], Awaitable[None]]) -> None:
        super().__init__()
        self._handle = handle

    async def handle(self, exchange: Exchange) -> None:
        await self._handle(exchange)


class ProblemRoute(Route):
    """Answers with a problem, in the form of the route `form` if it is given."""

    def __init__(self, problem: Problem, form: Route | None = None) -> None:
        super().__init__()
        self._problem = problem
        self._form = form

    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        if self._form is None:
            return super().problem(problem, request_id)
        return self._form.problem(problem, request_id)

    async def handle(self, exchange: Exchange) -> None:
        raise Refused(self._problem)


class PathMatch(NamedTuple, Generic[R]):
    """The routes at a path, by method; `path` is as declared, or empty for several or none."""

    routes: Mapping[str, R]
    params: Mapping[str, Any]
    path: str = ""


class _Pattern(NamedTuple, Generic[R]):
    """A path with parameters; `longest` bounds the length of a matching path."""

    regex: re.Pattern[str]
    convertors: Mapping[str, Convertor[Any]]
    longest: float
    routes: dict[str, R]
    path: str


_LONGEST_AMBIGUOUS: Final = 512
_PARAMETER: Final = re.compile(r"{[^{}:]*(?::([^{}]*))?}")


def _is_ambiguous(path: str) -> bool:
    """Returns whether a path's parameters may divide the same text in several ways."""
    # Then a regular expression takes quadratic time or more for a long text. Parameters divided by
    # a slash are not ambiguous, unless one may contain slashes.
    kinds = [one[1] for one in _PARAMETER.finditer(path)]
    if len(kinds) > 1 and "path" in kinds:
        return True
    return any(len(_PARAMETER.findall(segment)) > 1 for segment in path.split("/"))


class PathTable(Generic[R]):
    """Routes by path and method; the first of two with the same wins."""

    def __init__(self) -> None:
        self._plain: dict[str, PathMatch[R]] = {}
        self._by_path: dict[str, dict[str, R]] = {}
        self._patterns: list[_Pattern[R]] = []

    def add(self, path: str, methods: tuple[str, ...], route: R) -> None:
        routes = self._by_path.get(path)
        if routes is None:
            routes = self._by_path[path] = {}
            if "{" in path:
                from starlette.routing import compile_path

                regex, _, convertors = compile_path(path)
                longest = _LONGEST_AMBIGUOUS if _is_ambiguous(path) else math.inf
                self._patterns.append(_Pattern(regex, convertors, longest, routes, path))
            else:
                self._plain[path] = PathMatch(routes, {}, path)
        for method in methods:
            routes.setdefault(method, route)

    def at(self, path: str, method: str) -> PathMatch[R] | None:
        """Returns the first match with a route for the method, else all matching routes."""
        match = self._plain.get(path)
        if not self._patterns or (match is not None and method in match.routes):
            return match
        matching = [*([] if match is None else [match]), *self._matching(path)]
        wanted = {method, "GET"} if method == "HEAD" else {method}
        for match in matching:
            if not wanted.isdisjoint(match.routes):
                return match
        routes: dict[str, R] = {}
        for match in matching:
            routes |= match.routes
        return PathMatch(routes, {}) if matching else None

    def _matching(self, path: str) -> Iterator[PathMatch[R]]:
        """Yields the routes of each path with parameters that matches."""
        for pattern in self._patterns:
            match = pattern.regex.fullmatch(path) if len(path) <= pattern.longest else None
            if match is None:
                continue
            with suppress(ValueError):  # such as a number of too many digits
                params = {n: one.convert(match[n]) for n, one in pattern.convertors.items()}
                yield PathMatch(pattern.routes, params, pattern.path)


class RouteDispatcher:
    """Calls the route of a request, turns errors into responses, and counts the requests."""

    def __init__(self, shared: SharedParts) -> None:
        self.shared = shared

    @holds_ctrl_c
    async def dispatch(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        shared = self.shared
        exchange = Exchange(shared, scope, receive, send)
        try:
            try:
                await route.handle(exchange)
            except BaseException:
                # Entered only for failures. It replaces errors that are no `Exception`, which the
                # classes of items and results may raise; cancellations propagate.
                with _HOLDING:
                    raise
        except Exception as error:
            await self._respond_to_failure(exchange, route, error)
        finally:
            if exchange.status:  # else it has no response
                counted = exchange.calls or route
                took_s = shared.now() - exchange.began_at
                shared.times.count(counted.name, counted.protocol, exchange.status, took_s)

    async def _respond_to_failure(self, exchange: Exchange, route: Route, error: Exception) -> None:
        """Raises `error` if it is too late for another response."""
        try:
            if isinstance(error, CallerLeft):
                if not exchange.is_cut_off:
                    raise error
                error = ShutDown("the server ends")
            with _HOLDING:
                problem = exchange.explained(error, route.name)
            if exchange.status:
                exchange.status = 500  # for the metrics: the client does not get the rest
                raise error
            media_type, body = route.problem(problem, exchange.request_id)
            await exchange.respond(problem.status, media_type, body, problem.headers)
        except CallerLeft as left:
            if not (exchange.reports_disconnect or exchange.status):
                with suppress(CallerLeft):  # some middleware requires a response; servers drop it
                    await exchange.respond_without_body(LEFT)
            exchange.status = exchange.refused_with or LEFT
            _log.debug("%s: request %s: %s", route.name, exchange.request_id, left)
        finally:
            del error  # its traceback holds this frame

    async def call_app(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
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
            problem = problem_of(refusal, self.shared.options)
            await self.dispatch(scope, receive, send, ProblemRoute(problem))


def with_params(scope: Scope, match: PathMatch[Any]) -> Scope:
    """Returns the scope for the routes of a match, with the parameters of the path."""
    return {**scope, "path_params": {**scope.get("path_params", {}), **match.params}}


def route_for(method: str, routes: Mapping[str, Route]) -> Route:
    if method in routes:
        return routes[method]
    if method == "HEAD" and "GET" in routes:
        return routes["GET"]
    if method == "OPTIONS":
        allow = b"allow", ", ".join(_allowed(routes)).encode("ascii")
        return Page(lambda exchange: exchange.respond_without_body(204, [allow]))
    is_known = method in METHODS or method in ("CONNECT", "QUERY", "TRACE")
    problem = method_not_allowed(_allowed(routes)) if is_known else Problem.of("method-unknown")
    return ProblemRoute(problem, next(iter(routes.values()), None))


def _allowed(routes: Mapping[str, Route]) -> list[str]:
    methods = {"OPTIONS", *routes}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)
