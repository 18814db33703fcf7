"""The route of an endpoint: makes a call from a request, and answers with its result.

``X-Serve-Call-Method`` names another method of the backend's code than ``__call__``, and requests
with equal ``X-Serve-Shard-Key`` go to the same backend; both headers are Ray Serve's.
``X-Request-Timeout`` shortens the time limit of the call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import ref

from typing_extensions import override

from shoal.http.requests.call import NO_CALL_HEADERS, CallHeaders
from shoal.http.requests.call_route import CallRoute, resumed
from shoal.http.requests.compressed import CompressedAnswers
from shoal.http.requests.metadata import HttpMetadata
from shoal.http.requests.problem import Refused, invalid_timeout
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from shoal.batching.batcher import Batcher
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.codec import Codec, Codecs
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.http_options import HttpOptions


class EndpointRoute(CallRoute):
    """Answers requests with calls of one endpoint.

    Args:
        endpoint: The endpoint.
        codecs: The protocol's codecs.
        options: The options of the server.
    """

    protocol: ClassVar = "json"

    def __init__(self, endpoint: Endpoint, codecs: Codecs, options: HttpOptions) -> None:
        super().__init__(endpoint, options)
        self._codecs = codecs
        self._options = options
        # The batcher of the last call, which must not live on for this, and its codec.
        self._last: tuple[Callable[[], Batcher[Any] | None], Codec] | None = None

    @override
    def _begin(
        self, call: EndpointCall, exchange: Exchange, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        batcher = call.found(call_headers(exchange.headers))
        if batcher is None:
            return self._find(call, exchange, body)
        return self._make(call, exchange, batcher, body)

    async def _find(self, call: EndpointCall, exchange: Exchange, body: bytes) -> None:
        batcher = await call.find(call_headers(exchange.headers))
        rest = self._make(call, exchange, batcher, body)
        if rest is not None:
            await rest

    def _make(
        self, call: EndpointCall, exchange: Exchange, batcher: Batcher[Any], body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        codec = self._codec_of(batcher)
        item = codec.item(exchange, body)
        metadata = HttpMetadata(self.name, exchange)
        if call.streams:
            return self._stream(call, exchange, codec, item, metadata)
        if call.is_suspended(item, metadata):
            exchange.suspend(self, resumed, (self, call, codec))
            return None
        if call.has_ended:
            return self.written(exchange, codec, call.pending_result())
        return _wait(call, exchange, codec, item, metadata)

    @override
    def written(
        self, exchange: Exchange, kept: Codec, result: Any
    ) -> Coroutine[Any, Any, None] | None:
        body = kept.body(exchange, result)
        if body is None:
            return kept.answer(exchange, result)
        exchange.answer_directly(200, kept.media_type, body)
        return None

    async def _stream(
        self,
        call: EndpointCall,
        exchange: Exchange,
        codec: Codec,
        item: Any,
        metadata: HttpMetadata,
    ) -> None:
        form = codec.stream(exchange)
        if form.stops_reconnection and exchange.headers.get(b"last-event-id"):
            # To a reconnection after the end of the stream, or after it was lost.
            await exchange.answer_without_body(204)
            return
        await answer_with_stream(
            exchange,
            call.stream(item, metadata),
            form,
            call.explained,
            self._options.heartbeat_s,
            exchange.item_times(self.name),
        )

    def _codec_of(self, batcher: Batcher[Any]) -> Codec:
        last = self._last
        if last is not None and last[0]() is batcher:
            return last[1]
        codec = self._codecs.of(batcher)
        if self._options.compress_from_bytes is not None:
            codec = CompressedAnswers(codec)
        self._last = ref(batcher), codec
        return codec


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


async def _wait(
    call: EndpointCall, exchange: Exchange, codec: Codec, item: Any, metadata: HttpMetadata
) -> None:
    """Makes a call, and answers with its result."""
    result = await call.result(item, metadata)
    body = codec.body(exchange, result)
    if body is None:
        await codec.answer(exchange, result)
    else:
        await exchange.answer(200, codec.media_type, body)
