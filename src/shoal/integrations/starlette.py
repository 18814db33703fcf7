"""Batched functions in the routes of Starlette and FastAPI, under any ASGI server.

::

    api = FastAPI(lifespan=lifespan, exception_handlers=exception_handlers())
    api.mount("/-", operator_pages())

    @api.post("/embed")
    @cancel_on_disconnect
    async def embed_text(text: str) -> list[float]:
        return await embed(text)

Each part works without the others. Clients are watched while their route runs. Within `lifespan`
one task watches all of them (`shoal.http.requests.disconnects`), without it a task for each. On
Shoal's own server none does, since that server reports a disconnect itself.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, cast

import orjson
from anyio.lowlevel import RunVar
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.websockets import WebSocket, WebSocketState

from shoal.asgi.extensions import DISCONNECT
from shoal.asgi.http_options import HttpOptions
from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.batching.decorator.block import BatcherBlock, public_blocks
from shoal.batching.handlers.annotations import Annotations, read_signature
from shoal.core.histogram import LEFT
from shoal.errors import ShoalError, ShutDown
from shoal.failures.exceptions import own_copy
from shoal.http.json.stream_forms import form_for
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.problem import Refused
from shoal.http.requests.shared_parts import SharedParts
from shoal.http.requests.streaming import ItemStream, headers_of, respond_with_stream
from shoal.integrations.error_responses import ErrorKeywords, ErrorResponses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from starlette.background import BackgroundTask
    from starlette.types import Message, Receive, Scope, Send

    from shoal.core.counters import BatcherStatistics

P = ParamSpec("P")
R = TypeVar("R")

# The parameter that FastAPI fills in for an endpoint that does not take the request itself.
_REQUEST: Final = "shoal_request"
_FRESH: Final = {"cache-control": "no-store"}
_INTERNAL_ERROR: Final = 1011
_TRY_AGAIN_LATER: Final = 1013

# Those of the lifespan that was entered last in this event loop.
_of_lifespan: Final[RunVar[SharedParts | None]] = RunVar("shoal.shared_parts", default=None)


@asynccontextmanager
async def lifespan(_app: object = None) -> AsyncGenerator[None]:
    """Opens batched functions at their first call, as the lifespan of an application.

    It is `shoal.open_batchers` without names, with one difference: a handler that raises
    `SystemExit` or the like fails its batch, and does not end the server. To use it within a
    lifespan of your own, write ``async with lifespan(app): yield``.

    Args:
        _app: The application, as Starlette, FastAPI and Litestar pass it; unused.
    """
    shared, before = SharedParts(HttpOptions()), _of_lifespan.get()
    async with BatcherBlock(convert_error=own_copy), shared.disconnects.watching():
        _of_lifespan.set(shared)
        try:
            yield
        finally:
            _of_lifespan.set(before)


def exception_handlers(
    *of_handlers: type[Exception], **options: Unpack[ErrorKeywords]
) -> dict[Any, Any]:
    """Returns exception handlers that respond to Shoal's errors as its own endpoints do.

    They are for the argument ``exception_handlers`` of Starlette and FastAPI, and cover every
    `ShoalError`. A WebSocket is closed with 1013 if the client may try again later, else with 1011.

    Args:
        *of_handlers: Further classes that your handlers raise. Their errors get 500 without their
            text, and one log record for all callers of a batch.
        **options: As in `shoal.integrations.error_responses.ErrorResponses`.

    Raises:
        TypeError: An option is unknown or has the wrong type.
        ValueError: An option is out of its range.
    """
    responses = ErrorResponses(**options)

    async def explain(connection: HTTPConnection, error: Exception) -> Response | None:
        request_id = connection.headers.get("x-request-id")
        route = _route_name(connection.scope)
        status, headers, body = responses.of(error, request_id=request_id, route=route)
        if isinstance(connection, WebSocket):
            states = connection.application_state, connection.client_state
            if WebSocketState.DISCONNECTED not in states:
                code = _TRY_AGAIN_LATER if "retry-after" in headers else _INTERNAL_ERROR
                await connection.close(code, orjson.loads(body)["title"])
            return None
        return Response(body, status, headers)

    return dict.fromkeys((ShoalError, Refused, *of_handlers), explain)


def cancel_on_disconnect(endpoint: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Cancels an endpoint when its client disconnects, as a decorator below that of the route.

    Calls of batched functions that it awaits leave their batch. The body of the request is read
    before the endpoint runs, since a server reports a disconnect only after it. A disconnect in the
    first 50 ms is noticed after that time, except on Shoal's server. The access log then has the
    status 499. A streamed response, which begins after the endpoint has returned, is not covered;
    see `ResultStreamResponse`.

    Args:
        endpoint: An ``async`` function or method, of Starlette or FastAPI.

    Raises:
        TypeError: It is not ``async``: a function in a thread can't be cancelled.
    """
    if not inspect.iscoroutinefunction(endpoint):
        raise TypeError(
            "@cancel_on_disconnect takes an async function, because a thread can't be cancelled, "
            f"not {endpoint!r}; put it below the decorator of the route"
        )

    @wraps(endpoint)
    async def watched(*args: Any, **values: Any) -> Any:
        request = values.pop(_REQUEST, None) or _request_in(args, values)
        run = partial(cast("Callable[..., Awaitable[R]]", endpoint), *args, **values)
        try:
            with suppress(RuntimeError):  # FastAPI has read the body, as a form
                await request.body()
            return await _run_watched(request, run)
        except (CallerLeft, ClientDisconnect):
            return Response(status_code=LEFT)

    signature = read_signature(endpoint)
    if not _takes_request(endpoint, signature):
        given = list(signature.parameters.values())
        at = len(given) - (bool(given) and given[-1].kind is inspect.Parameter.VAR_KEYWORD)
        kind = inspect.Parameter.KEYWORD_ONLY
        given.insert(at, inspect.Parameter(_REQUEST, kind, annotation=Request))
        watched.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return watched


class ResultStreamResponse(Response):
    """A response with the items of a stream, sent as they arrive, as Shoal's endpoints send them.

    The client's ``Accept`` chooses server-sent events, JSON lines or a JSON array. The call is made
    when the response is sent. If it fails before the first item, the exception is raised from the
    route, so that `exception_handlers` choose the status; later it is the last message of the
    stream. The call is cancelled when the client disconnects, or does not read for 10 seconds.
    During silence the client gets a heartbeat every 15 seconds.

    Args:
        stream: The result of a batched generator, which has not been entered.
        background: What runs when the response has ended, also after a disconnect.
    """

    def __init__(self, stream: ItemStream, *, background: BackgroundTask | None = None) -> None:
        super().__init__(background=background)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Makes the call and sends its items."""
        async with _shared_parts() as shared:
            await self._send_to(Exchange(shared, scope, receive, send))
        if self.background is not None:
            await self.background()

    async def _send_to(self, exchange: Exchange) -> None:
        try:
            form = form_for(exchange)
            if exchange.wants_no_body:
                await exchange.respond_without_body(200, headers_of(form))
                return
            explain = partial(exchange.explained, name=_route_name(exchange.scope))
            await respond_with_stream(exchange, self._stream, form, explain=explain)
        except CallerLeft:
            if exchange.is_cut_off:
                raise ShutDown("the server ends") from None
            if not exchange.status:  # some middleware requires a response
                with suppress(CallerLeft):
                    await exchange.respond_without_body(LEFT)


def operator_pages() -> Router:
    """Returns an application with pages for probes and Prometheus, to be mounted at ``/-``.

    ``healthz`` responds with 200 while the process responds at all; ``readyz`` with 200 while
    batched functions can be called, else 503; ``metrics`` has the metrics of their batchers, whose
    label ``backend`` is the function's name. They show the batchers that `lifespan`,
    `shoal.open_batchers` without names, and the lifespan of a `shoal.App` have opened.

    Anyone can read them: do not let the proxy forward ``/-``.
    """
    routes = {"/healthz": _handle_alive, "/readyz": _handle_ready, "/metrics": _handle_metrics}
    return Router([Route(path, answer) for path, answer in routes.items()])


async def _handle_alive(_request: Request) -> Response:
    return JSONResponse({"status": "alive"}, headers=_FRESH)


async def _handle_ready(_request: Request) -> Response:
    blocks = public_blocks()
    if any(not block.is_closing for block in blocks):
        status = "ready"
    else:
        status = "draining" if blocks else "not open"
    states = {
        name: {"state": now.state, "queued": now.queued, "running": now.running}
        for name, _method, now in _statistics()
    }
    ready = 200 if status == "ready" else 503
    return JSONResponse({"status": status, "batchers": states}, ready, _FRESH)


async def _handle_metrics(request: Request) -> Response:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    from shoal.observe.collector import ShoalCollector

    registry = CollectorRegistry()
    registry.register(ShoalCollector(_statistics, tuple, {}))
    ProcessCollector(registry=registry)
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": media_type, **_FRESH})


def _statistics() -> Iterator[tuple[str, str, BatcherStatistics]]:
    """Yields the name, an empty method and the statistics of each batcher of this event loop."""
    # A method has a batcher for each instance, and so have several functions of one name. Numbers
    # keep their labels apart; they are bounded by the number of batchers that are open at once.
    numbers: dict[str, Iterator[int]] = {}
    for block in public_blocks():
        for batcher in block.batchers:
            number = next(numbers.setdefault(batcher.name, count(1)))
            name = batcher.name if number == 1 else f"{batcher.name}#{number}"
            yield name, "", batcher.statistics()


def _route_name(scope: Scope) -> str:
    """Returns the name of the endpoint, for the log; a path could have any text of a client."""
    name: str = getattr(scope.get("endpoint"), "__name__", "-")
    return name


@asynccontextmanager
async def _shared_parts() -> AsyncGenerator[SharedParts]:
    shared = _of_lifespan.get()
    if shared is not None:
        yield shared
        return
    shared = SharedParts(HttpOptions())
    async with shared.disconnects.watching():
        yield shared


async def _run_watched(request: Request, run: Callable[[], Awaitable[R]]) -> R:
    """Runs a function; raises `CallerLeft` if the client, whose body was read, leaves first."""
    extensions: Mapping[str, Any] = request.scope.get("extensions") or {}
    offered = extensions.get(DISCONNECT)
    if offered is not None:
        return await run_unless_left(offered["when_left"], run)
    async with _shared_parts() as shared:
        client = Exchange(shared, request.scope, request.receive, send=_sends_nothing)
        try:
            return await run_unless_left(client.when_left, run)
        finally:
            if client.has_ended is not None:
                await client.has_ended.wait()


async def _sends_nothing(_message: Message) -> None:
    """Stands for the `send` of a request that is watched only."""


def _request_in(args: tuple[Any, ...], values: Mapping[str, Any]) -> Request:
    for value in (*args, *values.values()):
        if isinstance(value, Request):
            return cast("Request", value)
    raise TypeError("@cancel_on_disconnect: the endpoint was called without a Starlette Request")


def _takes_request(endpoint: Callable[..., Any], signature: inspect.Signature) -> bool:
    """Returns whether FastAPI passes the request to a parameter of the endpoint."""
    known, parameters = Annotations(endpoint), signature.parameters.items()
    annotations = [known.written(name, one.annotation) for name, one in parameters]
    return any(
        issubclass(one, Request)
        if isinstance(one, type)
        else isinstance(one, str) and one.rpartition(".")[2] == Request.__name__
        for one in annotations
    )
