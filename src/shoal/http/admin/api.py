"""The admin API: the verbs of a `Client` over HTTP, under ``/-/api/``.

Its routes are those of the table of verbs (`shoal.serving.clients.verbs`), one that shows an
endpoint, one for calls, and one that records arrivals. docs/reference/server.md lists them.

A request is checked in this order: its authorization (`guard`), its path and method, the names of
its members, its import paths (`imports`), and then by the client's own checks, so that errors are
the same with a local client. A verb is cancelled if the HTTP client disconnects. A shutdown
continues, and so does a drain that has begun.

Only the operator may use the admin API, and a remote client recreates a verb's error from the
problem. The problem therefore contains the error's text, even of an error in user code, unlike
those of `shoal.http.requests.problem`.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pydantic_core import from_json

from shoal.asgi.http_options import HttpOptions
from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.core.options.names import suggested
from shoal.http.admin import recordings
from shoal.http.admin.guard import Guard
from shoal.http.json.scan import malformed_json
from shoal.http.json.stream_forms import form_for
from shoal.http.requests.dispatch import PathTable
from shoal.http.requests.exchange import FRESH, JSON, Exchange, split_path
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import NOT_FOUND, Problem, Refused, method_not_allowed
from shoal.http.requests.streaming import ItemStream, respond_with_stream
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.serving.clients.protocol import VERBS, Client
from shoal.serving.clients.verbs import Verb, array, mapping
from shoal.serving.clients.wire import RAISED, error_to_wire, shown
from shoal.serving.controller.controller import Controller
from shoal.serving.imports import ImportRule
from shoal.serving.names import METHODS, found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence


API: Final = "/-/api/"
_log: Final = logging.getLogger("shoal.http")
# The limit for requests other than calls.
MAX_BODY_BYTES: Final = 2**20


async def read_object(exchange: Exchange, max_bytes: int) -> dict[str, Any]:
    """Raises TypeError if the body is not an object."""
    media_type = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    coding = exchange.headers.get(b"content-encoding", b"identity").strip().lower()
    if media_type != b"application/json" or coding != b"identity":
        raise Refused.of(
            "unsupported-media-type",
            "The admin API takes JSON; send Content-Type: application/json.",
        )
    body = await exchange.body(max_bytes)
    try:
        value: Any = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise malformed_json(str(error), body) from None
    if not isinstance(value, dict):
        raise TypeError(f"the body must be a JSON object, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def members(body: dict[str, Any], known: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the object if it has all required members (True in `known`) and no unknown ones."""
    names = sorted(known, key=lambda name: not known[name])
    for name in names:
        if known[name] and name not in body:
            raise TypeError(f"the body must have {name!r}")
    for name in body:
        if name not in known:
            hint = suggested(name, names) or f"it takes {', '.join(names)}"
            raise TypeError(f"the body can't have {name!r}; {hint}")
    return body


# The status of all other errors is 500.
_KINDS_BY_STATUS: Final = {
    403: ("not-allowed",),
    404: ("no-such-model", "no-such-name"),
    408: ("slow-reader",),
    409: ("in-use", "name-taken", "not-durable", "not-enough-gpus"),
    413: ("item-too-large",),
    422: ("replica-not-started", "type-error", "value-error"),
    502: ("replica-died",),
    503: ("backend-unavailable", "closed", "not-open", "overloaded", "shut-down"),
    504: ("deadline-exceeded", "handler-timeout"),
}


def admin_problem(error: Exception) -> Problem:
    described = error_to_wire(error)
    status = next((one for one, kinds in _KINDS_BY_STATUS.items() if described.kind in kinds), 500)
    title = described.kind.replace("-", " ").capitalize()
    return Problem(status, described.kind, title, described.text, more=described.more)


_CALL: Final[Mapping[str, bool]] = dict.fromkeys(("args", "kwargs", "options"), False)
_OPTIONS: Final[Mapping[str, bool]] = dict.fromkeys(HANDLE_OPTIONS, False)


class AdminRequest(NamedTuple):
    """An authorized request; the body is empty if the route takes none."""

    exchange: Exchange
    names: Mapping[str, str]
    body: dict[str, Any]


class AdminRoute(NamedTuple):
    method: str
    path: str
    handle: Callable[[AdminRequest], Awaitable[None]]
    max_body_bytes: int = 0


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
        options: HttpOptions | None = None,
    ) -> None:
        self._guard = Guard(token)
        self.options = options = options or HttpOptions()
        self._client = client
        self._imports = ImportRule(allowed_modules)
        self._recordings = 0  # that run now
        # The JSON around the item adds to the size of a call.
        self.routes = tuple(self._routes(options.max_body_bytes + MAX_BODY_BYTES))
        self._table = PathTable[AdminRoute]()
        for route in self.routes:
            self._table.add(API + route.path, (route.method,), route)

    def check_reader(self, exchange: Exchange) -> None:
        """Refuses a request for a page that is not authorized."""
        self._guard.check(exchange.scope, changes=False, is_page=True)

    async def handle(self, exchange: Exchange) -> None:
        method: str = exchange.scope["method"]
        self._guard.check(exchange.scope, changes=method != "GET")
        route, names = self._find(exchange, method)
        try:
            limit = route.max_body_bytes
            body = await read_object(exchange, limit) if limit else {}
            with _trace_of(exchange):
                await route.handle(AdminRequest(exchange, names, body))
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
            raise Refused(NOT_FOUND)
        route = match.routes.get(method)
        if route is None:
            raise Refused(method_not_allowed(sorted(match.routes, key=METHODS.index)))
        return route, match.params

    def _routes(self, max_call_bytes: int) -> Iterator[AdminRoute]:
        for verb in VERBS.values():
            if verb is not None:
                most = MAX_BODY_BYTES if verb.takes_body else 0
                yield AdminRoute(verb.method, verb.path, partial(self._handle_verb, verb), most)
        yield AdminRoute("GET", "endpoints/{name}", self._show_endpoint)
        yield AdminRoute("POST", "endpoints/{name}/call", self._call, max_call_bytes)
        yield AdminRoute("POST", "trace", self._record, MAX_BODY_BYTES)

    async def _handle_verb(self, verb: Verb, request: AdminRequest) -> None:
        received: dict[str, Any] = dict(request.names)
        if verb.query is not None:
            received[verb.query] = _flag(verb.query, request)
        if verb.body is not None:
            received[verb.body] = request.body
        else:
            received |= members(request.body, verb.members)
        bound = verb.arguments(received, self._imports)
        run = partial(getattr(self._client, verb.function.__name__), *bound.args, **bound.kwargs)
        if verb.goes_on:
            result = await run()
        else:
            result = await run_unless_left(request.exchange.when_left, run)
        await _send(request.exchange, {} if result is None else shown(result))

    async def _show_endpoint(self, request: AdminRequest) -> None:
        name, endpoints = request.names["name"], await self._client.list_endpoints()
        await _send(request.exchange, found("endpoint", name, endpoints))

    async def _call(self, request: AdminRequest) -> None:
        exchange, body = request.exchange, members(request.body, _CALL)
        args = array("args", body.get("args", []))
        kwargs = mapping("kwargs", body.get("kwargs", {}))
        options = mapping("options", body.get("options", {}))
        handle = await self._client.get_handle(request.names["name"])
        if options:
            handle = handle.options(**members(options, _OPTIONS))
        accept = exchange.headers.get(b"accept", b"")
        if b"ndjson" in accept or b"text/event-stream" in accept:
            stream = cast("ItemStream", handle.stream(*args, **kwargs))
            await respond_with_stream(exchange, stream, form_for(exchange), explain=admin_problem)
        else:
            run = partial(handle.call, *args, **kwargs)
            await _send(exchange, await run_unless_left(exchange.when_left, run))

    async def _record(self, request: AdminRequest) -> None:
        if not isinstance(self._client, Controller):
            raise Refused(NOT_FOUND)
        self._client.check_open()
        body = members(request.body, recordings.MEMBERS)
        recording = recordings.RunningRecording(self._client, body)
        if self._recordings >= recordings.MOST_RECORDINGS:
            title = "Too much is being recorded"
            detail = f"{self._recordings} recordings run already; wait until one has ended."
            raise Refused(Problem(503, "too-many-recordings", title, detail))
        self._recordings += 1
        try:
            await recording.handle(request.exchange)
        finally:
            self._recordings -= 1


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


def _flag(name: str, request: AdminRequest) -> bool:
    query: bytes = request.exchange.scope.get("query_string", b"")
    if query not in (b"", f"{name}=0".encode(), f"{name}=1".encode()):
        raise ValueError(f"the query must be empty, ?{name}=0 or ?{name}=1")
    return query.endswith(b"1")


async def _send(exchange: Exchange, result: Any) -> None:
    try:
        body = encoded(result)
    except TypeError as error:
        raise TypeError(f"the result can't be sent as JSON: {error}") from error
    await exchange.respond(200, JSON, body, FRESH)
