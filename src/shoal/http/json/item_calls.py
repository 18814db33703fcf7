"""Calls without a task, for the requests of front ends that differ in their items only.

Most requests at a front end have the same head as others. The first one is answered as all requests
are. Then the route lends the server, in the process of the batches, an `ItemCalls` for this head:
it begins a call as soon as an item or a body arrives, and gives the response once the call has
ended. So the requests of a batch cost that process one task switch together.

This is a second way, for speed: it takes half of the processor time. It is only for what most
requests are. Nothing is around the application, such as middleware or a tracer; no option of the
batcher runs the user's code for an item; and the result has a plain type. Anything else ends in a
task, as an exchange: every error, and every other result.
"""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from shoal.batching.calls.leaving import CallerLeft
from shoal.core.forming.call_options import CallOptions
from shoal.core.histogram import LEFT
from shoal.core.request import UNDER_WAY, State
from shoal.failures.held import held
from shoal.http.json.payload import Received
from shoal.http.requests.call import OF_CALLS, HttpMetadata
from shoal.http.requests.dispatch import Page, RouteDispatcher
from shoal.http.requests.exchange import ASKS_FOR_JSON, JSON
from shoal.http.requests.plain import ALWAYS_JSON, encoded, is_large_array
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from shoal.asgi.extensions import ItemRequest
    from shoal.batching.calls.entry import Entry
    from shoal.core.request import Request
    from shoal.http.requests.call import EndpointCalls
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.protocol import Codec
    from shoal.http.requests.shared_parts import SharedParts
    from shoal.serving.backends.method_batcher import MethodBatcher

FINISHED = State.FINISHED
# Headers with which requests differ in more than their items.
_OF_ONE_REQUEST: Final = {b"x-request-id", *OF_CALLS}
_encoded: Final = held(encoded)


def lend(exchange: Exchange, calls: EndpointCalls, batcher: MethodBatcher, codec: Codec) -> None:
    """Lends the server what begins further calls, if these differ in their items only."""
    headers, entry = exchange.headers, batcher.entry
    if (
        codec.read_alone is not None
        and not batcher.streams
        and entry is not None
        and entry.is_plain
        and not exchange.wants_no_body
        and exchange.options.server_timing == "never"
        and headers.get(b"accept") in ASKS_FOR_JSON
        and headers.keys().isdisjoint(_OF_ONE_REQUEST)
        and not exchange.scope.get("path_params")
    ):
        read_body = partial(codec.read_alone, Received(headers, exchange.options))
        # Weak: a server keeps it for longer than a backend may live.
        lent = partial(ItemCalls, calls, ref(batcher), codec, read_body, codec.decoder)
        exchange.lend(lambda shared: lent(shared).begin)


@dataclass(slots=True)
class ItemCalls:
    """Begins the calls of one endpoint for one head of requests; lent to the server."""

    endpoint_calls: EndpointCalls
    batcher: ref[MethodBatcher]
    codec: Codec
    # Makes an item of a body, for the number 0.
    read_body: Callable[[bytes], Any]
    # The number of the front end's decoder that makes items too.
    decoder: int
    shared: SharedParts

    def begin(
        self, served: ItemRequest, application: object, decoder: int, given: Any
    ) -> ItemCall | None:
        endpoint, batcher = self.endpoint_calls.endpoint, self.batcher()
        backend = endpoint.only
        if (
            # Another application may be around this one, or the server may refuse requests by now.
            application is not self.shared.bare_app
            or backend is None
            or batcher is None
            or endpoint.shadows
            or backend.method_batchers.get("__call__") is not batcher
            or batcher.converters is not None
            or (entry := batcher.entry) is None
            or not entry.is_plain
        ):
            return None
        if decoder:
            if decoder != self.decoder:
                return None
        elif not given or len(given) > self.shared.options.max_body_bytes:
            return None
        endpoint.requests += 1
        return ItemCall(self, served, entry, decoder, given)


class ItemCall:
    """One call; the caller in its metadata."""

    __slots__ = (
        *("_began_at", "_calls", "_decoder", "_error", "_id", "_intake", "_request", "_served"),
    )

    def __init__(
        self, calls: ItemCalls, served: ItemRequest, entry: Entry, decoder: int, given: Any
    ) -> None:
        self._calls = calls
        self._served = served
        self._decoder = decoder
        self._intake = entry.intake
        self._began_at = calls.shared.now()
        self._id = calls.shared.new_id()
        self._request: Request | None = None
        self._error: Exception | None = None
        try:
            self._request = self._entered(entry, given)
        except Exception as error:  # such as a body that does not fit, or a full queue
            self._error = error
            served.wake()

    @held
    def _entered(self, entry: Entry, given: Any) -> Request:
        # The user's validators may run, and set context variables; observers if it is refused.
        calls, intake = self._calls, self._intake
        item = unpickled(given) if self._decoder else copy_context().run(calls.read_body, given)
        timeout_s = entry.options.request_timeout_s
        if timeout_s is None:
            timeout_s = calls.endpoint_calls.options.answer_timeout_s
        now, metadata = intake.now(), HttpMetadata(calls.endpoint_calls.name, self)
        options = entry.options_factory.of(item, CallOptions(timeout_s, metadata), now)
        return intake.enter(item, options, now, self._served)

    # As the caller in the metadata.

    @property
    def request_id(self) -> str:
        return self._id.decode("ascii")

    @property
    def scope(self) -> Scope:
        return self._served.scope()

    # For the server.

    def leave(self) -> None:
        request = self._request
        if request is not None:
            is_under_way = request.state in UNDER_WAY
            self._intake.abandon(request)
            if is_under_way:
                self._served.wake()

    def answer(self) -> tuple[list[tuple[bytes, bytes]], Any] | None:
        request = self._request
        if request is None:
            return None
        self._intake.overdue.forget(request.options)
        if request.state is not FINISHED or request.error is not None:
            return None
        body = self._body_of(request.value)
        if body is None:
            return None
        self._count(200)
        return [(b"content-type", JSON), (b"x-request-id", self._id)], body

    def _body_of(self, result: Any) -> Any:
        """Returns JSON, or an array for a front end with a decoder; None for other results."""
        if type(result) in ALWAYS_JSON:
            try:
                # The user's serializers may run, and set context variables.
                return copy_context().run(_encoded, result)
            except Exception:  # it will be raised again where it is handled
                return None
        return result if self._decoder and is_large_array(result) else None

    def count_left(self, refused_with: int) -> None:
        if self._request is not None:
            self._intake.overdue.forget(self._request.options)
        self._count(refused_with or LEFT)

    def _count(self, status: int) -> None:
        self._request = None  # its metadata refers to this
        self._error = None  # its traceback holds this
        shared, calls = self._calls.shared, self._calls.endpoint_calls
        took_s = shared.now() - self._began_at
        shared.times.count(calls.name, calls.protocol, status, took_s)

    async def finish(self, scope: Scope, receive: Receive, send: Send) -> None:
        await RouteDispatcher(self._calls.shared).dispatch(
            scope, receive, send, Page(self._respond)
        )

    async def _respond(self, exchange: Exchange) -> None:
        exchange.calls, exchange.id = self._calls.endpoint_calls, self._id
        exchange.began_at = self._began_at
        request, self._request = self._request, None
        try:
            if request is None:
                assert self._error is not None
                raise self._error
            if request.error is not None:
                raise request.error
            if request.state is not FINISHED:
                raise CallerLeft("the caller left before its call was answered")
            await self._calls.codec.respond(exchange, request.value)
        finally:
            self._error = None  # its traceback holds this frame
            if request is not None:
                request.error = None
