"""A route that answers with calls of one endpoint, in any protocol."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from shoal.http.requests.call import EndpointCall, EndpointCalls
from shoal.http.requests.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from shoal.http.requests.exchange import Exchange
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.http_options import HttpOptions


class CallRoute(Route):
    """Answers requests with calls of one endpoint.

    A call for whose end no task waits is suspended with the step `resumed`, and ``(route, call,
    kept)`` for it; then `written` answers.

    Args:
        endpoint: The endpoint.
        options: The options of the server.
    """

    def __init__(self, endpoint: Endpoint, options: HttpOptions) -> None:
        super().__init__(endpoint.name)
        self._calls = EndpointCalls(endpoint, options)

    @override
    def begin(self, exchange: Exchange) -> Awaitable[None] | None:
        call = EndpointCall(self._calls, exchange)
        try:
            body = exchange.whole_body()
            rest: Coroutine[Any, Any, None] | None
            if body is None:
                rest = self._answer(call, exchange)
            else:
                call.now = exchange.arrived_at
                rest = self._begin(call, exchange, body)
        except BaseException:
            with call:  # only now, since without an error there is nothing to do at its end
                raise
        return None if rest is None else within(call, rest)

    @override
    async def answer(self, exchange: Exchange) -> None:
        """Answers one request.

        Raises:
            CallerLeft: The client is gone, or did not read in time; its calls were cancelled.
            Exception: The request failed before its answer had begun.
        """
        with EndpointCall(self._calls, exchange) as call:
            await self._answer(call, exchange)

    async def _answer(self, call: EndpointCall, exchange: Exchange) -> None:
        # The batcher is found after the body was read: meanwhile the traffic may have moved.
        rest = self._begin(call, exchange, await exchange.body())
        if rest is not None:
            await rest

    @abstractmethod
    def _begin(
        self, call: EndpointCall, exchange: Exchange, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """Makes the calls of a request.

        Returns:
            What must be awaited; None if the request is answered, or suspended.
        """

    @abstractmethod
    def written(
        self, exchange: Exchange, kept: Any, result: Any
    ) -> Coroutine[Any, Any, None] | None:
        """Answers with the result of a call that has ended.

        Args:
            exchange: The request; it was passed on directly.
            kept: What was kept for it.
            result: The result.

        Returns:
            What must be awaited for that.
        """


def answered(
    exchange: Exchange,
    media_type: bytes,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Coroutine[Any, Any, None] | None:
    """Sends a whole answer with status 200; returns what must be awaited for that."""
    if exchange.direct is None or exchange.settings.compress_from_bytes is not None:
        return exchange.answer(200, media_type, body, headers)
    exchange.answer_directly(200, media_type, body, headers)
    return None


async def within(call: EndpointCall, rest: Coroutine[Any, Any, None]) -> None:
    """Awaits the rest of a call inside of its ``with`` block."""
    with call:
        await rest


def resumed(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
    """Answers a request whose call has ended meanwhile; returns what must be awaited for that."""
    route: CallRoute
    call: EndpointCall
    (route, call, kept), exchange.kept = exchange.kept, None
    try:
        rest = route.written(exchange, kept, call.pending_result())
    except BaseException:
        with call:
            raise
    return None if rest is None else within(call, rest)
