"""The route of an endpoint: makes a call from a request, and answers with its result.

``X-Serve-Call-Method`` names another method of the backend's code than ``__call__``, and requests
with equal ``X-Serve-Shard-Key`` go to the same backend; both headers are Ray Serve's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.body import read_body
from shoal.http.requests.call import EndpointCalls, HttpMetadata
from shoal.http.requests.routing import Route
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from shoal.http.requests.codec import Codecs
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

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request.

        Raises:
            CallerLeft: The client is gone, or did not read in time; the call was cancelled.
            Exception: The request failed before its answer had begun.
        """
        with self._calls.begin(exchange) as call:
            headers = exchange.headers
            body = await read_body(
                exchange.receive,
                headers.get(b"content-length"),
                self._options.max_body_bytes,
                exchange.incomplete.of(exchange.scope.get("client")),
            )
            # After the body was read: meanwhile the traffic may have moved to another backend.
            key = headers.get(b"x-serve-shard-key")
            batcher = await call.find(
                headers.get(b"x-serve-call-method", b"__call__").decode("latin-1"),
                None if key is None else key.decode("latin-1"),
                headers.get(b"x-priority"),
            )
            codec = self._codecs.of(batcher)
            item = codec.item(exchange, body)
            metadata = HttpMetadata(self.name, exchange)
            if call.streams:
                await answer_with_stream(
                    exchange,
                    call.stream(item, metadata),
                    codec.stream(exchange),
                    call.explained,
                    self._options.heartbeat_s,
                )
            else:
                await codec.answer(exchange, await call.result(item, metadata))
