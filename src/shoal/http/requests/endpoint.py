"""The route of an endpoint: makes a call from a request, and answers with its result.

``X-Serve-Call-Method`` names another method of the backend's code than ``__call__``, and requests
with equal ``X-Serve-Shard-Key`` go to the same backend; both headers are Ray Serve's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from shoal.http.requests.call import EndpointCalls, HttpMetadata
from shoal.http.requests.routing import Route
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.batching.batcher import Batcher
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.codec import Codec, Codecs
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.http_options import HttpOptions


class EndpointRoute(Route):
    """Answers requests with calls of one endpoint.

    Args:
        endpoint: The endpoint.
        codecs: The protocol's codecs.
        options: The options of the server.
    """

    def __init__(self, endpoint: Endpoint, codecs: Codecs, options: HttpOptions) -> None:
        super().__init__(endpoint.name)
        self._calls = EndpointCalls(endpoint, options)
        self._codecs = codecs
        self._options = options
        # The batcher of the last call, which must not live on for this, and its codec.
        self._last: tuple[Callable[[], Batcher[Any] | None], Codec] | None = None

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request.

        Raises:
            CallerLeft: The client is gone, or did not read in time; the call was cancelled.
            Exception: The request failed before its answer had begun.
        """
        with self._calls.begin(exchange) as call:
            body = await exchange.body()
            headers = exchange.headers
            method = headers.get(b"x-serve-call-method")
            key = headers.get(b"x-serve-shard-key")
            # After the body was read: meanwhile the traffic may have moved to another backend.
            batcher = await call.find(
                "__call__" if method is None else method.decode("latin-1"),
                None if key is None else key.decode("latin-1"),
                headers.get(b"x-priority"),
                headers.get(b"cache-control"),
            )
            codec = self._codec_of(batcher)
            item = codec.item(exchange, body)
            metadata = HttpMetadata(self.name, exchange)
            if batcher.streams:
                await answer_with_stream(
                    exchange,
                    call.stream(item, metadata),
                    codec.stream(exchange),
                    call.explained,
                    self._options.heartbeat_s,
                )
            elif call.is_suspended(item, metadata):
                exchange.suspend(self, partial(_resumed, call, codec))
            else:
                result = await call.result(item, metadata)
                answer = codec.body(exchange, result)
                if answer is None:
                    await codec.answer(exchange, result)
                else:
                    await exchange.answer(200, codec.media_type, answer)

    def _codec_of(self, batcher: Batcher[Any]) -> Codec:
        if self._last is not None and self._last[0]() is batcher:
            return self._last[1]
        codec = self._codecs.of(batcher)
        self._last = ref(batcher), codec
        return codec


def _resumed(
    call: EndpointCall, codec: Codec, exchange: Exchange
) -> Coroutine[Any, Any, None] | None:
    """Answers a request whose call has ended meanwhile; returns what must be awaited for that."""
    with call:
        result = call.pending_result()
        body = codec.body(exchange, result)
        if body is not None:
            exchange.answer_directly(200, codec.media_type, body)
            return None
    return _answered(call, codec, exchange, result)


async def _answered(call: EndpointCall, codec: Codec, exchange: Exchange, result: Any) -> None:
    with call:
        await codec.answer(exchange, result)
