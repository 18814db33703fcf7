"""The route of an endpoint: makes a call from a request, and responds with its result.

``X-Serve-Call-Method`` names another method of the backend's code than ``__call__``. Requests with
equal ``X-Serve-Shard-Key`` go to the same backend. Both headers are Ray Serve's.
``X-Request-Timeout`` shortens the time limit of the call.

A backend may have functions of its own between HTTP and its code: ``decode`` makes the item of the
request, and ``encode`` makes the response, or the content, of the result.
"""

from __future__ import annotations

import re
from functools import partial
from inspect import isawaitable
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from pydantic import ValidationError
from starlette.formparsers import MultiPartException
from typing_extensions import override

from shoal.http.json.content_coding import decoded
from shoal.http.json.validation import problem_of_validation
from shoal.http.json.whole_request import WholeRequest
from shoal.http.requests.call import NO_CALL_HEADERS, CallHeaders, EndpointCall, EndpointCalls
from shoal.http.requests.dispatch import Route
from shoal.http.requests.problem import Refused
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.codec import Codec
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.config.converters import Converters
    from shoal.serving.endpoints.endpoint import Endpoint


class EndpointRoute(Route):
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
            if found.converters is not None:
                await self._answer_converted(call, exchange, found, found.converters, body)
                return
            codec = found.made_by(self._make_codec)
            item = codec.item(exchange, body)
            if call.streams:
                await self._answer_with_stream(call, exchange, codec, item)
            else:
                await codec.answer(exchange, await call.result(item))

    async def _answer_converted(
        self,
        call: EndpointCall,
        exchange: Exchange,
        found: MethodBatcher,
        converters: Converters,
        body: bytes,
    ) -> None:
        """Answers a request with the backend's ``decode`` and ``encode``."""
        whole = decoded(exchange.headers, body, self._options.max_body_bytes)
        request = WholeRequest(exchange.scope, whole)
        decode, encode = converters
        try:
            if decode is None:
                codec = found.made_by(self._make_codec)
                item = codec.item(exchange, body)
            else:
                codec = found.made_of_results(self._make_codec)
                item = await _decoded(decode, request, call)
                _check_count(item, len(found.batcher.signature.parameters))
            if call.streams:
                await self._answer_with_stream(
                    call, exchange, codec, item, partial(encode, request) if encode else None
                )
                return
            result = await call.result(item)
            await codec.answer(exchange, result if encode is None else encode(request, result))
        finally:
            with anyio.CancelScope(shield=True):
                await request.close()  # the files of a form

    async def _answer_with_stream(
        self,
        call: EndpointCall,
        exchange: Exchange,
        codec: Codec,
        item: Any,
        encode: Callable[[Any], Any] | None = None,
    ) -> None:
        form = codec.stream(exchange)
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
            encode,
        )


async def _decoded(decode: Callable[[Any], Any], request: WholeRequest, call: EndpointCall) -> Any:
    """Calls ``decode``; its usual errors about a malformed request become `Refused`."""
    try:
        item = decode(request)
        return await call.prepared(item) if isawaitable(item) else item
    except ValidationError as error:
        raise Refused(problem_of_validation(error)) from None
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise Refused.of("invalid-json", f"The body: {error}.") from None
    except (MultiPartException, ValueError) as error:
        # Earlier versions of Starlette let an error of the parser through.
        if type(error).__module__.partition(".")[0] not in ("starlette", "python_multipart"):
            raise
        raise Refused.of("invalid-form", f"The form: {error}") from None


def _check_count(item: Any, count: int) -> None:
    kind = item.__class__
    if count != 1 and (kind is not tuple or len(item) != count):
        given = len(item) if kind is tuple else kind.__name__
        raise TypeError(
            f"decode must return a tuple of {count} values, one for each parameter of the code, "
            f"not {given}"
        )


def call_headers(headers: Mapping[bytes, bytes]) -> CallHeaders:
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
    if not _SECONDS.fullmatch(given):
        raise Refused.of(
            "invalid-timeout",
            "X-Request-Timeout must be a number of seconds, such as 2.5: digits, with at most one "
            "dot.",
        )
    return float(given)


_SECONDS: Final = re.compile(rb"[0-9]{1,15}(\.[0-9]{1,15})?")
_OF_CALLS: Final = frozenset(
    {
        *(b"x-serve-call-method", b"x-serve-shard-key", b"x-priority", b"cache-control"),
        b"x-request-timeout",
    }
)
