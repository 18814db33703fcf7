"""The admin API: the verbs of a `Client` over HTTP, under ``/-/api/``.

Its routes are those of the table of verbs (`shoal.serving.clients.verbs`), one that shows an
endpoint, one for calls, and one that records arrivals. docs/reference/server.md lists them.

A request is checked in this order: its authorization (`guard`), its path and method, its body, its
import paths (`imports`), and then by the client's own checks. A verb is cancelled if the HTTP
client disconnects. A shutdown continues, and so does a drain that has begun.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.asgi.http_options import HttpOptions
from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.http.admin.guard import Guard
from shoal.http.admin.recordings import Recordings
from shoal.http.admin.verbs import MAX_BODY_BYTES, AdminRequest, Verbs, admin_problem, read_object
from shoal.http.requests.dispatch import PathTable
from shoal.http.requests.exchange import FRESH, JSON, Exchange, split_path
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import Refused, method_not_allowed, not_found
from shoal.serving.clients.protocol import VERBS, Client
from shoal.serving.clients.wire import RAISED
from shoal.serving.imports import ImportRule
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence


API: Final = "/-/api/"

_log: Final = logging.getLogger("shoal.http")


@dataclass(frozen=True)
class AdminRoute:
    method: str
    path: str
    # Returns the result; None if `stream` answers all clients.
    run: Callable[[AdminRequest], Awaitable[Any]] | None
    # Sends the response itself, to a client that accepts streams.
    stream: Callable[[AdminRequest], Awaitable[None]] | None = None
    max_body_bytes: int = 0
    # Whether the verb continues after its client disconnects.
    goes_on: bool = False


class AdminApi:
    # Without a token, mount it only where no one but the operator can connect: on a UNIX socket
    # that only the operator's user can open. `allowed_modules` are those that import paths may
    # name, with submodules; ["*"] allows all. A call may be as large here as at a route.

    def __init__(
        self,
        client: Client,
        *,
        token: str | None,
        allowed_modules: Sequence[str] | None,
        settings: HttpOptions | None = None,
    ) -> None:
        self._guard = Guard(token)
        settings = settings or HttpOptions()
        verbs = Verbs(client, ImportRule(allowed_modules), settings.heartbeat_s)
        # The JSON around the item adds to the size of a call.
        most = settings.max_body_bytes + MAX_BODY_BYTES
        trace = Recordings(client).answer
        self.routes = (
            *_routes_of(verbs, most),
            AdminRoute("POST", "trace", None, trace, max_body_bytes=MAX_BODY_BYTES),
        )
        self._table = PathTable[AdminRoute]()
        for route in self.routes:
            self._table.add(API + route.path, (route.method,), route)

    def check_reader(self, exchange: Exchange) -> None:
        """Refuses a request for a page that is not authorized."""
        self._guard.check(exchange.scope, changes=False, is_page=True)

    async def answer(self, exchange: Exchange) -> None:
        method: str = exchange.scope["method"]
        self._guard.check(exchange.scope, changes=method != "GET")
        route, names = self._find(exchange, method)
        try:
            limit = route.max_body_bytes
            body = await read_object(exchange, limit) if limit else {}
            with _trace_of(exchange):
                await _run(route, AdminRequest(exchange, names, body))
        except (Refused, CallerLeft):
            raise
        except Exception as error:
            if exchange.status:
                raise
            problem = admin_problem(error)
            if problem.kind == RAISED:
                _log.error("request %s failed", exchange.request_id, exc_info=error)
            raise Refused(problem) from error

    def _find(self, exchange: Exchange, method: str) -> tuple[AdminRoute, Mapping[str, str]]:
        _, path = split_path(exchange.scope)
        match = self._table.at(path, method)
        if match is None:
            raise Refused(not_found())
        route = match.routes.get(method)
        if route is None:
            raise Refused(method_not_allowed(sorted(match.routes, key=METHODS.index)))
        return route, match.params


@contextmanager
def _trace_of(exchange: Exchange) -> Generator[None]:
    """Continues the trace of a request, in a process that makes traces."""
    if "opentelemetry.propagate" not in sys.modules:
        yield
        return
    from opentelemetry.context import attach, detach

    from shoal.observe.otel.instrument import context_of_caller

    token = attach(context_of_caller(exchange.headers.items()))
    try:
        yield
    finally:
        detach(token)


def _routes_of(verbs: Verbs, max_call_bytes: int) -> Iterable[AdminRoute]:
    for verb in VERBS.values():
        if verb is not None:
            yield AdminRoute(
                verb.method,
                verb.path,
                partial(verbs.answer, verb),
                max_body_bytes=MAX_BODY_BYTES if verb.takes_body else 0,
                goes_on=verb.goes_on,
            )
    yield AdminRoute("GET", "endpoints/{name}", verbs.show_endpoint)
    yield AdminRoute(
        "POST",
        "endpoints/{name}/call",
        verbs.call,
        stream=verbs.stream,
        max_body_bytes=max_call_bytes,
    )


async def _run(route: AdminRoute, request: AdminRequest) -> None:
    exchange = request.exchange
    if route.stream is not None and (route.run is None or _accepts_streams(exchange)):
        await route.stream(request)
        return
    assert route.run is not None
    if route.goes_on:
        result = await route.run(request)
    else:
        result = await run_unless_left(exchange.when_left, partial(route.run, request))
    try:
        body = encoded(result)
    except TypeError as error:
        raise TypeError(f"the result can't be sent as JSON: {error}") from error
    await exchange.answer(200, JSON, body, FRESH)


def _accepts_streams(exchange: Exchange) -> bool:
    accept = exchange.headers.get(b"accept", b"")
    return b"ndjson" in accept or b"text/event-stream" in accept
