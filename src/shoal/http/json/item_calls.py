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
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.calls.leaving import CallerLeft
from shoal.core.forming.call_options import CallOptions
from shoal.core.histogram import LEFT
from shoal.core.request import UNDER_WAY, State
from shoal.http.json.payload import Received
from shoal.http.requests.call import OF_CALLS, HttpMetadata
from shoal.http.requests.dispatch import Page, RouteDispatcher
from shoal.http.requests.exchange import ASKS_FOR_JSON, JSON

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from shoal.asgi.extensions import ItemRequest
    from shoal.batching.calls.entry import Entry
    from shoal.core.request import Request
    from shoal.http.json.endpoint import JsonCodec
    from shoal.http.requests.call import EndpointCalls
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.shared_parts import SharedParts
    from shoal.serving.backends.method_batcher import MethodBatcher

FINISHED = State.FINISHED
# Headers with which requests differ in more than their items.
_OF_ONE_REQUEST: Final = {b"x-request-id", *OF_CALLS}
# What items are made of without their request.
_READ: Final = ("json", "array", "bytes")


def lend(
    exchange: Exchange, calls: EndpointCalls, batcher: MethodBatcher, codec: JsonCodec
) -> None:
    """Lends the server what begins further calls, if these differ in their items only."""
    headers, entry = exchange.headers, batcher.entry
    if (
        codec.takes in _READ
        and not batcher.streams
        and entry is not None
        and entry.is_plain
        and not exchange.wants_no_body
        and exchange.options.server_timing == "never"
        and headers.get(b"accept") in ASKS_FOR_JSON
        and b"content-encoding" not in headers
        and headers.keys().isdisjoint(_OF_ONE_REQUEST)
        and not exchange.scope.get("path_params")
    ):
        received = Received(headers, exchange.options)
        exchange.lend(lambda shared: ItemCalls(calls, shared, batcher, codec, received).begin)


class ItemCalls:
    """Begins the calls of items for one head of requests; lent to the server."""

    def __init__(
        self,
        calls: EndpointCalls,
        shared: SharedParts,
        batcher: MethodBatcher,
        codec: JsonCodec,
        received: Received,
    ) -> None:
        self.calls = calls
        self.shared = shared
        self.codec = codec
        self._batcher = batcher
        self._received = received

    def begin(self, served: ItemRequest, decoder: int, given: Any) -> ItemCall | None:
        endpoint, batcher = self.calls.endpoint, self._batcher
        backend, entry = endpoint.only, batcher.entry
        if (
            self.shared.bare_app is None
            or backend is None
            or endpoint.shadows
            or backend.method_batchers.get("__call__") is not batcher
            or batcher.converters is not None
            or entry is None
            or not entry.is_plain
            or entry.intake.home.thread != get_ident()
        ):
            return None
        if decoder:
            if decoder != self.codec.decoder:
                return None
        elif not given or len(given) > self._received.options.max_body_bytes:
            return None
        endpoint.requests += 1
        return ItemCall(self, served, entry, decoder, given)

    def item(self, body: bytes) -> Any:
        # The user's validators may run.
        return copy_context().run(self.codec.held_item, self._received, body)


class ItemCall:
    """One call; the caller in its metadata."""

    __slots__ = (
        "_began_at",
        "_calls",
        "_decoder",
        "_error",
        "_id",
        "_intake",
        "_request",
        "_served",
    )

    def __init__(
        self, calls: ItemCalls, served: ItemRequest, entry: Entry, decoder: int, given: Any
    ) -> None:
        self._calls = calls
        self._served = served
        self._decoder = decoder
        self._intake = intake = entry.intake
        self._began_at = calls.shared.now()
        self._id = calls.shared.new_id()
        self._request: Request | None = None
        self._error: Exception | None = None
        timeout_s = entry.options.request_timeout_s
        if timeout_s is None:
            timeout_s = calls.calls.options.answer_timeout_s
        try:
            item = given if decoder else calls.item(given)
            now, metadata = intake.now(), HttpMetadata(calls.calls.name, self)
            options = entry.options_factory.of(item, CallOptions(timeout_s, metadata), now)
            self._request = intake.enter(item, options, now, served)
        except Exception as error:  # such as a body that does not fit, or a full queue
            self._error = error
            served.wake()

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
        if request is not None and request.state in UNDER_WAY:
            self._intake.abandon(request)
            self._served.wake()

    def answer(self) -> tuple[list[tuple[bytes, bytes]], Any] | None:
        request, calls = self._request, self._calls
        if request is None:
            return None
        self._intake.former.overdue.forget(request)
        if request.state is not FINISHED or request.error is not None:
            return None
        body = calls.codec.plain_body(request.value, has_decoder=bool(self._decoder))
        if body is None:
            return None
        self._count(200)
        return [(b"content-type", JSON), (b"x-request-id", self._id)], body

    def count_left(self, refused_with: int) -> None:
        if self._request is not None:
            self._intake.former.overdue.forget(self._request)
        self._count(refused_with or LEFT)

    def _count(self, status: int) -> None:
        self._request = None  # its metadata refers to this
        calls = self._calls
        took_s = calls.shared.now() - self._began_at
        calls.shared.times.count(calls.calls.name, calls.calls.protocol, status, took_s)

    async def finish(self, scope: Scope, receive: Receive, send: Send) -> None:
        await RouteDispatcher(self._calls.shared).dispatch(
            scope, receive, send, Page(self._respond)
        )

    async def _respond(self, exchange: Exchange) -> None:
        exchange.calls, exchange.id = self._calls.calls, self._id
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
