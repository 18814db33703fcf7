"""Shoal's own protocol: results as JSON or bytes, streams as `stream_forms` has them."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from typing_extensions import override

from shoal.http.requests.accept import VARIES
from shoal.http.requests.codec import Codec
from shoal.http.requests.exchange import JSON
from shoal.http.requests.header_check import check_headers
from shoal.http.requests.marks import media_type_of
from shoal.http.requests.plain import encoded
from shoal.http.requests.queries import ItemReader
from shoal.http.requests.results import BYTES, BYTES_TYPES, written
from shoal.http.requests.stream_forms import form_for

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.http.requests.codec import StreamForm
    from shoal.http.requests.exchange import Exchange


# What needs no closer look, since nearly all requests are such.
_ALWAYS_JSON: Final = frozenset({dict, list, tuple, str, int, float, bool, NoneType})
_ASKS_FOR_NOTHING: Final = frozenset({None, b"", b"*/*", JSON})

# A browser must not take bytes for a page, whatever they look like.
_NOT_JSON: Final = (b"x-content-type-options", b"nosniff")


class JsonCodec(Codec):
    """The codec of Shoal's own protocol.

    Args:
        signature: The signature of a call with one item.

    Raises:
        TypeError: JSON can't be checked against an annotation.
    """

    media_type = JSON

    def __init__(self, signature: Signature) -> None:
        self._reader = ItemReader(signature)
        self._of_bytes = media_type_of(signature.return_annotation) or BYTES

    @property
    def takes(self) -> str:
        """The kind of input, in one word; see `Reader`."""
        return self._reader.takes

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return self._reader.item(exchange, body)

    @override
    def body(self, exchange: Exchange, result: Any) -> bytes | None:
        if type(result) in _ALWAYS_JSON and exchange.headers.get(b"accept") in _ASKS_FOR_NOTHING:
            return encoded(result)
        return None

    @override
    async def answer(self, exchange: Exchange, result: Any) -> None:
        if isinstance(result, Response):
            await _answer_with_response(exchange, result)
            return
        accept = exchange.headers.get(b"accept", b"")
        media_type, body = written(result, accept, self._of_bytes)
        headers: list[tuple[bytes, bytes]] = [] if media_type is JSON else [_NOT_JSON]
        if accept not in _ASKS_FOR_NOTHING and type(result) not in BYTES_TYPES:
            headers.append(VARIES)
        await exchange.answer(200, media_type, body, headers)

    @override
    def stream(self, exchange: Exchange) -> StreamForm:
        return form_for(exchange)


async def _answer_with_response(exchange: Exchange, response: Response) -> None:
    """Sends a response that a handler has returned: its status, headers and body."""
    body: Any = getattr(response, "body", None)
    if body is None:
        raise TypeError(
            f"the result is a {type(response).__name__}, which has no body of its own; return a "
            "Response, or write the handler as a generator to stream"
        )
    media_type = response.headers.get("content-type", "").encode("latin-1")
    headers = [
        (n, v) for n, v in response.raw_headers if n not in (b"content-type", b"content-length")
    ]
    check_headers(response.raw_headers)
    await exchange.answer(response.status_code, media_type, bytes(body), headers)
    if response.background is not None:
        await response.background()
