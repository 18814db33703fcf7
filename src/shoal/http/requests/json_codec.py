"""Shoal's own protocol: items and results as JSON, streams as server-sent events or JSON lines.

The two forms of streams differ only in framing. Both have three distinct messages: an item, the
end, an error. A stream that ends without one of the last two is incomplete, and its reader can
tell. Server-sent events have names for that (``event: end``, ``event: error``; items are unnamed).
JSON lines have no names, so each line is an object whose only key is the type of message; with bare
items no value could mark the end. Clients choose the form by ``Accept``: JSON lines if it names
them and does not rank them below server-sent events, else server-sent events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from starlette.responses import Response
from typing_extensions import override

from shoal.http.requests.codec import Codec, StreamForm
from shoal.http.requests.exchange import JSON
from shoal.http.requests.header_check import check_headers
from shoal.http.requests.payload import encoded
from shoal.http.requests.queries import ItemReader

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem


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

    @property
    def takes(self) -> str:
        """The kind of input, in one word; see `Reader`."""
        return self._reader.takes

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return self._reader.item(exchange, body)

    @override
    def body(self, exchange: Exchange, result: Any) -> bytes | None:
        return None if isinstance(result, Response) else encoded(result)

    @override
    async def answer(self, exchange: Exchange, result: Any) -> None:
        await _answer_with_response(exchange, result)

    @override
    def stream(self, exchange: Exchange) -> StreamForm:
        return form_for(exchange.headers.get(b"accept", b""))


class _Framed(StreamForm):
    """A form whose messages are JSON between constant texts."""

    before_item: ClassVar[bytes]
    before_error: ClassVar[bytes]
    after: ClassVar[bytes]
    last: ClassVar[bytes]

    @override
    def item(self, value: Any) -> bytes:
        return self.before_item + encoded(value) + self.after

    @override
    def end(self) -> bytes:
        return self.last

    @override
    def error(self, problem: Problem, request_id: str) -> bytes:
        return self.before_error + encoded(problem.members(request_id)) + self.after


class ServerSentEvents(_Framed):
    """Server-sent events, as browsers read them by `EventSource`."""

    media_type = b"text/event-stream"
    heartbeat = b":\n\n"
    before_item = b"data: "
    before_error = b"event: error\ndata: "
    after = b"\n\n"
    # A browser's EventSource drops an event that has no data.
    last = b"event: end\ndata: {}\n\n"


class JsonLines(_Framed):
    """Lines of JSON objects with one key: ``item``, ``end`` or ``error``."""

    media_type = b"application/x-ndjson"
    heartbeat = b"\n"
    before_item = b'{"item":'
    before_error = b'{"error":'
    after = b"}\n"
    last = b'{"end":true}\n'


SERVER_SENT_EVENTS = ServerSentEvents()
JSON_LINES = JsonLines()


def form_for(accept: bytes) -> StreamForm:
    """Returns the form that a client accepts.

    Args:
        accept: The request's ``Accept`` header; empty if it has none.
    """
    if not accept or accept == b"*/*":
        return SERVER_SENT_EVENTS
    weights = _weights(accept)
    lines = max(weights.get(b"application/x-ndjson", 0.0), weights.get(b"application/ndjson", 0.0))
    events = weights.get(b"text/event-stream", 0.0)
    return JSON_LINES if lines > 0 and lines >= events else SERVER_SENT_EVENTS


def _weights(accept: bytes) -> dict[bytes, float]:
    weights: dict[bytes, float] = {}
    for media_range in accept.lower().split(b","):
        name, *parameters = (part.strip() for part in media_range.split(b";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        weights[name] = weight
    return weights


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
