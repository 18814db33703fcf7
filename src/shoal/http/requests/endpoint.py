"""The route of an endpoint: makes a call from a request, and answers with its result.

``X-Serve-Call-Method`` names another method of the backend's code than ``__call__``, and requests
with equal ``X-Serve-Shard-Key`` go to the same backend; both headers are Ray Serve's.
``X-Request-Timeout`` shortens the time limit of the call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from shoal.http.requests.call import NO_CALL_HEADERS, CallHeaders, EndpointCall, EndpointCalls
from shoal.http.requests.compressed import compressed_form
from shoal.http.requests.problem import Refused, invalid_timeout
from shoal.http.requests.routing import Route
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.codec import Codec
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.endpoints.endpoint import Endpoint


class EndpointRoute(Route):
    """Answers requests with calls of one endpoint.

    Args:
        endpoint: The endpoint.
        make_codec: Makes the protocol's codec of the signature of a call with one item.
        options: The options of the server.
    """

    protocol: ClassVar = "json"

    def __init__(
        self, endpoint: Endpoint, make_codec: Callable[[Signature], Codec], options: HttpOptions
    ) -> None:
        super().__init__(endpoint.name)
        self._calls = EndpointCalls(endpoint, options)
        self._make_codec = make_codec
        self._options = options

    @override
    async def answer(self, exchange: Exchange) -> None:
        with EndpointCall(self._calls, exchange) as call:
            # The batcher is found after the body was read: meanwhile the traffic may have moved.
            body = await exchange.body()
            found = await call.find(call_headers(exchange.headers))
            codec = found.made_by(self._make_codec)
            item = codec.item(exchange, body)
            if call.streams:
                await self._answer_with_stream(call, exchange, codec, item)
            else:
                await codec.answer(exchange, await call.result(item))

    async def _answer_with_stream(
        self, call: EndpointCall, exchange: Exchange, codec: Codec, item: Any
    ) -> None:
        form = compressed_form(exchange, codec.stream(exchange))
        if form.stops_reconnection and exchange.headers.get(b"last-event-id"):
            # To a reconnection after the end of the stream, or after it was lost.
            await exchange.answer_without_body(204)
            return
        await answer_with_stream(
            exchange,
            call.stream(item),
            form,
            call.explained,
            self._options.heartbeat_s,
            exchange.item_times(self.name),
        )


def call_headers(headers: Mapping[bytes, bytes]) -> CallHeaders:
    """Returns what a request's headers say about its call.

    Raises:
        Refused: A header can't be read.
    """
    if headers.keys().isdisjoint(_OF_CALLS):
        return NO_CALL_HEADERS
    method = headers.get(b"x-serve-call-method")
    key = headers.get(b"x-serve-shard-key")
    timeout = headers.get(b"x-request-timeout")
    return CallHeaders(
        "__call__" if method is None else method.decode("latin-1"),
        None if key is None else key.decode("latin-1"),
        headers.get(b"x-priority"),
        headers.get(b"cache-control"),
        None if timeout is None else _timeout_s(timeout),
    )


def _timeout_s(given: bytes) -> float:
    """Returns the seconds of ``X-Request-Timeout``.

    Raises:
        Refused: It is not a decimal number.
    """
    if not _SECONDS.fullmatch(given):
        raise Refused(invalid_timeout())
    return float(given)


_SECONDS: Final = re.compile(rb"[0-9]{1,15}(\.[0-9]{1,15})?")
_OF_CALLS: Final = frozenset(
    {
        *(b"x-serve-call-method", b"x-serve-shard-key", b"x-priority", b"cache-control"),
        b"x-request-timeout",
    }
)
