"""The route of an endpoint: makes a call from a request, and responds with its result.

``X-Serve-Call-Method`` names another method of the backend's code than ``__call__``. Requests with
equal ``X-Serve-Shard-Key`` go to the same backend. Both headers are Ray Serve's.
``X-Request-Timeout`` shortens the time limit of the call.

A backend may have functions of its own between HTTP and its code: ``decode`` makes the item of the
request, and ``encode`` makes the response, or the content, of the result.

The forms of a result are these; `stream_forms` has those of a stream:

==============================  =================================================================
the result is                   the response is
==============================  =================================================================
bytes                           these, as ``application/octet-stream``
a numpy array                   a ``.npy`` file, if ``Accept`` asks for ``application/x-npy``
anything                        MessagePack, if ``Accept`` asks for ``application/msgpack``
anything                        JSON
==============================  =================================================================

A result that can't be written as ``Accept`` asks is sent as JSON: ``Accept`` is a preference.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from copy import copy
from functools import partial
from inspect import isawaitable
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from pydantic import ValidationError
from starlette.formparsers import MultiPartException
from starlette.responses import FileResponse, Response

from shoal.asgi.headers import headers_of_code, may_be_decoded_early
from shoal.batching.calls.leaving import run_unless_left
from shoal.http.json.arrays import NPY, as_npy
from shoal.http.json.content_coding import decompressed
from shoal.http.json.decoder import description_of
from shoal.http.json.item_calls import lend
from shoal.http.json.lines import has_lines, respond_with_lines
from shoal.http.json.msgpack import MSGPACK, has_msgpack, packed
from shoal.http.json.payload import reader_for
from shoal.http.json.queries import WITH_BODY, QueryReader, takes_body
from shoal.http.json.stream_forms import VARIES, form_for, prefers, weights
from shoal.http.json.validation import problem_of_validation
from shoal.http.json.whole_request import WholeRequest
from shoal.http.requests.call import EndpointCalls
from shoal.http.requests.dispatch import Route
from shoal.http.requests.exchange import ASKS_FOR_JSON, JSON
from shoal.http.requests.plain import ALWAYS_JSON, encoded, is_large_array, of_memoryview
from shoal.http.requests.problem import Refused
from shoal.http.requests.protocol import Codec
from shoal.http.requests.streaming import headers_of, respond_with_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from inspect import Signature

    from starlette.types import Message

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.protocol import StreamForm
    from shoal.serving.backend_options import Converters
    from shoal.serving.endpoint import Endpoint


# A browser must not take bytes for a page, whatever they look like.
_NOT_JSON: Final = (b"x-content-type-options", b"nosniff")
_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}
# The numbers of descriptions: equal ones have one decoder.
_decoders: Final[dict[bytes | None, int]] = {}
# The media type of bytes by default.
BYTES: Final = b"application/octet-stream"
# Results of these types are sent unchanged.
BYTES_TYPES: Final = frozenset({bytes, bytearray, memoryview})


class EndpointRoute(Route):
    protocol: ClassVar = "json"

    def __init__(
        self, endpoint: Endpoint, make_codec: Callable[[Signature], JsonCodec], options: HttpOptions
    ) -> None:
        super().__init__(endpoint.name)
        self.calls = EndpointCalls(endpoint, options, self.protocol)
        self._make_codec = make_codec
        self._options = options

    async def handle(self, exchange: Exchange) -> None:
        exchange.count_under(self.calls)
        if exchange.early_item is not None and await self._handle_early(
            exchange, *exchange.early_item
        ):
            return
        body = exchange.whole_body()
        if body is None:
            body = await exchange.body()
        # After the body was read, since the traffic may have moved in that time.
        call = await self.calls.call_for(exchange)
        batcher = call.batcher
        if batcher.converters is not None:
            await self._handle_converted(call, exchange, batcher.converters, body)
            return
        codec = batcher.codec_of(self._make_codec)
        media_type = exchange.headers.get(b"content-type", JSON)
        if media_type != JSON and body and codec.lines is not None and has_lines(media_type):
            await respond_with_lines(call, exchange, codec.lines(exchange, body))
            return
        item = codec.item(exchange, body)
        if exchange.front_end is not None:
            if may_be_decoded_early(exchange.headers):
                description = codec.description(self._options)
                if description is not None:
                    exchange.set_front_end_decoder(codec.decoder, description)
            lend(exchange, self.calls, batcher, codec)
        if batcher.streams:
            await self._respond_with_stream(call, exchange, codec, item)
        else:
            await codec.respond(exchange, await call.result(item))

    async def _handle_early(self, exchange: Exchange, decoder: int, item: Any) -> bool:
        """Answers a request that a front end has decoded; returns False to decode it here."""
        if not may_be_decoded_early(exchange.headers):
            return False
        call = await self.calls.call_for(exchange)
        batcher = call.batcher
        codec = None if batcher.converters else batcher.codec_of(self._make_codec)
        if codec is None or codec.decoder != decoder:
            exchange.set_front_end_decoder(0, b"")  # until another one is set
            return False
        if batcher.streams:
            await self._respond_with_stream(call, exchange, codec, item)
            return True
        lend(exchange, self.calls, batcher, codec)
        await codec.respond(exchange, await call.result(item))
        return True

    async def _handle_converted(
        self,
        call: EndpointCall,
        exchange: Exchange,
        converters: Converters,
        body: bytes,
    ) -> None:
        request = WholeRequest(exchange.scope, decompressed(exchange, body))
        decode, encode = converters
        batcher = call.batcher
        try:
            if decode is None:
                codec = batcher.codec_of(self._make_codec)
                item = codec.item(exchange, body)
            else:
                codec = batcher.codec_of_results(self._make_codec)
                item = await _call_decode(decode, request, call)
                _check_count(item, len(batcher.batcher.signature.parameters))
            if call.batcher.streams:
                await self._respond_with_stream(
                    call, exchange, codec, item, partial(encode, request) if encode else None
                )
                return
            result = await call.result(item)
            await codec.respond(exchange, result if encode is None else encode(request, result))
        finally:
            with anyio.CancelScope(shield=True):
                await request.close()  # the files of a form

    async def _respond_with_stream(
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
            await exchange.respond_without_body(204)
        elif exchange.wants_no_body:
            await exchange.respond_without_body(200, headers_of(form))
        else:
            tick = exchange.item_clock(self.name)
            await respond_with_stream(exchange, call.stream(item), form, tick, encode)


async def _call_decode(
    decode: Callable[[Any], Any], request: WholeRequest, call: EndpointCall
) -> Any:
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


class JsonCodec(Codec):
    """Shoal's own protocol; the signature is that of a call with one item."""

    def __init__(self, signature: Signature) -> None:
        self._read, self.takes, _, self.lines = reader_for(signature)
        parameters = list(signature.parameters.values())
        self._query = None if takes_body("GET", parameters) else QueryReader(signature)
        self._signature = signature
        self._description: bytes | None = None
        self.read_alone = self._read if self.takes in ("json", "array", "bytes") else None

    def description(self, options: HttpOptions) -> bytes | None:
        """Returns how a front end can decode items; None if it can't."""
        if not self.decoder:
            if self.takes in ("json", "array"):
                self._description = description_of(self._signature, options)
            self.decoder = _decoders.setdefault(self._description, len(_decoders) + 1)
        return self._description

    def item(self, exchange: Exchange, body: bytes) -> Any:
        if not body and self._query is not None and exchange.scope["method"] not in WITH_BODY:
            return self._query.item(exchange)
        return self._read(exchange, body)

    def respond(self, exchange: Exchange, result: Any) -> Awaitable[None]:
        accept = exchange.headers.get(b"accept")
        if type(result) in ALWAYS_JSON and accept in ASKS_FOR_JSON:
            return exchange.respond(200, JSON, encoded(result))
        return self._respond_with_other(exchange, result, accept)

    async def _respond_with_other(
        self, exchange: Exchange, result: Any, accept: bytes | None
    ) -> None:
        may_be_array = is_large_array(result) and accept in ASKS_FOR_JSON
        if may_be_array and exchange.responded_with_array(result):
            return
        if isinstance(result, Response):
            await _respond_with_response(exchange, result)
            return
        media_type, body = written(result, accept or b"")
        headers: list[tuple[bytes, bytes]] = [] if media_type is JSON else [_NOT_JSON]
        if accept not in ASKS_FOR_JSON and type(result) not in BYTES_TYPES:
            headers.append(VARIES)
        await exchange.respond(200, media_type, body, headers)

    def stream(self, exchange: Exchange) -> StreamForm:
        return form_for(exchange)


async def _respond_with_response(exchange: Exchange, response: Response) -> None:
    body: Any = getattr(response, "body", None)
    status: Any = response.status_code
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise TypeError(f"a Response has a status from 200 to 599, not {status!r}")
    if body is None:  # a StreamingResponse or a FileResponse
        await _send_response(exchange, response)
    else:
        headers = headers_of_code(response.raw_headers)
        media_type = dict(headers).get(b"content-type", BYTES)
        headers = [pair for pair in headers if pair[0] != b"content-type"]
        await exchange.respond(status, media_type, bytes(body), headers)
    if response.background is not None:
        await response.background()


async def _send_response(exchange: Exchange, response: Response) -> None:
    """Lets a response send itself, until it has ended or its client has disconnected."""
    # From this version of ASGI on, Starlette's responses don't watch for a disconnect.
    scope = {**exchange.scope, "asgi": _ASGI, "extensions": {}}
    pieces: Any = getattr(response, "body_iterator", None)
    sending = copy(response)
    sending.background = None
    last = b""

    async def send(message: Message) -> None:
        nonlocal last
        if message["type"] == "http.response.start":
            headers = headers_of_code(message["headers"])
            # Starlette knows the length of a file, and clients show their progress with it.
            if isinstance(response, FileResponse):
                headers += [one for one in message["headers"] if one[0] == b"content-length"]
            await exchange.begin(message["status"], headers)
        elif message.get("more_body", False):
            await exchange.piece_in_time(bytes(message["body"]))
        else:  # sent once the disconnect is no longer watched
            last = bytes(message.get("body", b""))

    try:
        if pieces is not None and exchange.wants_no_body:
            headers = headers_of_code(response.raw_headers)
            await exchange.respond_without_body(response.status_code, headers)
        else:
            run = partial(sending, scope, exchange.receive, send)
            await run_unless_left(exchange.when_left, run)
            await exchange.end(last)
    finally:
        if isinstance(pieces, AsyncGenerator):  # Starlette leaves it open
            with anyio.CancelScope(shield=True):
                await pieces.aclose()


def written(value: Any, accept: bytes) -> tuple[bytes, bytes]:
    """Returns the media type and the bytes of a result; raises TypeError if it has no form."""
    if type(value) is memoryview:
        value = of_memoryview(value)
    if type(value) in BYTES_TYPES:
        return BYTES, bytes(value)
    accepted = weights(accept) if accept else {}
    if prefers(accepted, NPY, JSON):
        array = as_npy(value)
        if array is not None:
            return NPY, array
    if prefers(accepted, MSGPACK, JSON) and has_msgpack():
        try:
            return MSGPACK, packed(value)
        except TypeError:
            pass
    return JSON, encoded(value)
