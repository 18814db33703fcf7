"""The dispatcher: answers one HTTP request by its route, and errors by problems."""

from __future__ import annotations

import itertools
import logging
import secrets
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from typing_extensions import override

from shoal.batching.calls.leaving import CallerLeft
from shoal.batching.failures.holding import holding
from shoal.batching.loops.event_loop import holds_ctrl_c
from shoal.http.requests.body import IncompleteBodies
from shoal.http.requests.codec import problem_json
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.problem import (
    Refused,
    explained,
    method_not_allowed,
    method_unknown,
    not_found,
)
from shoal.http.requests.routing import Found, Route
from shoal.observe.metrics import NO_ENDPOINT, AnswerCounts
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.serving.http_options import HttpOptions

_log: Final = logging.getLogger("shoal.http")


class RouteDispatcher:
    """Calls the route of a request, turns errors into answers, and counts the answers.

    Attributes:
        answers: The number of answers by endpoint and status.
    """

    def __init__(self, settings: HttpOptions) -> None:
        self.answers = AnswerCounts()
        self._settings = settings
        self._incomplete = IncompleteBodies(settings)
        self._id_prefix = secrets.token_hex(4).encode("ascii")
        self._id_count = itertools.count(1)

    def _new_id(self) -> bytes:
        # Unique among processes that share a log, and cheap to make for each request.
        return b"%b-%x" % (self._id_prefix, next(self._id_count))

    @holds_ctrl_c
    async def answer(
        self, scope: Scope, receive: Receive, send: Send, found: Found[Route] | None
    ) -> None:
        """Answers one request.

        Args:
            scope: The ASGI scope.
            receive: The ASGI callable.
            send: The ASGI callable.
            found: The routes at the request's path; None if there are none.
        """
        routes = None
        if found is not None:
            routes = found.routes
            if found.params:
                params = {**scope.get("path_params", {}), **found.params}
                scope = {**scope, "path_params": params}
        exchange = Exchange(scope, receive, send, self._settings, self._new_id, self._incomplete)
        name = NO_ENDPOINT
        write_problem = problem_json
        try:
            try:
                route = _route_for(scope, routes)
                if route is None:
                    allow = (b"allow", ", ".join(_allowed(routes)).encode("ascii"))
                    await exchange.answer_without_body(204, [allow] if routes else [])
                else:
                    name, write_problem = route.name, route.problem
                    with holding():  # the classes of items and results may do anything
                        await route.answer(exchange)
            except CallerLeft:
                raise
            except Exception as error:
                with holding():
                    problem = explained(error, self._settings, name, exchange.request_id)
                if exchange.status:
                    raise  # too late for another answer; the server aborts the connection
                media_type, body = write_problem(problem, exchange.request_id)
                await exchange.answer(problem.status, media_type, body, problem.headers)
        except CallerLeft as left:
            _log.debug("%s: request %s: %s", name, exchange.request_id, left)
        finally:
            if exchange.status:
                self.answers.count(name, exchange.status)

    async def answer_by(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls an application; its `HTTPException` is answered as one of a route would be."""
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, begin)
        except HTTPException as refusal:
            if has_begun or scope["type"] != "http":
                raise
            await self.answer(
                scope, receive, send, Found[Route]({scope["method"]: _Refusal(refusal)}, {})
            )


class _Refusal(Route):
    """A route that raises the `HTTPException` of a mounted application."""

    def __init__(self, refusal: HTTPException) -> None:
        super().__init__()
        self._refusal = refusal

    @override
    async def answer(self, exchange: Exchange) -> None:
        raise self._refusal


def _route_for(scope: Scope, routes: Mapping[str, Route] | None) -> Route | None:
    """Returns the route for a request; None for ``OPTIONS``, which asks for the methods.

    Raises:
        Refused: There is no route for it.
    """
    method = scope["method"]
    if routes is None:
        if method == "OPTIONS" and scope["path"] == "*":  # asks about the server as a whole
            return None
        raise Refused(not_found())
    route = routes.get(method) or (routes.get("GET") if method == "HEAD" else None)
    if route is None and method != "OPTIONS":
        is_known = method in METHODS or method in ("CONNECT", "TRACE")
        raise Refused(method_not_allowed(_allowed(routes)) if is_known else method_unknown())
    return route


def _allowed(routes: Mapping[str, Route] | None) -> list[str]:
    """Returns the methods that a path with these routes accepts."""
    methods = {"OPTIONS", *(routes or ())}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)
