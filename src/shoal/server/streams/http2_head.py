"""The head of an HTTP/2 request, checked with the parser for heads of HTTP/1.1.

It is written as a head of HTTP/1.1 and parsed, and the result must equal the fields that the client
has sent. Both protocols then refuse the same requests, with the same limits, and no proxy or
application can read a head of HTTP/2 in another way than this server.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from hpack import Decoder, HeaderTuple

from shoal.asgi.headers import BadRequest
from shoal.server.http1.body import MAX_TRAILERS, check_trailer
from shoal.server.http1.head import find_end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.http1.head import Headers, HeadParser

_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path", b":protocol"})
_OF_HTTP_1: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
# A head this many times over the limit ends the connection, since decoding it takes too long.
_HEADS_REFUSED_IN_WORDS: Final = 8
# h2 gets this object in place of the name. No client can send it: it is compared with `is`.
_CONTENT_LENGTH: Final = bytes(bytearray(b"Content-Length"))

# It logs each header, including clients' tokens, if all loggers are set to DEBUG.
_hpack_log: Final = logging.getLogger("hpack")
if _hpack_log.level == logging.NOTSET:
    _hpack_log.setLevel(logging.INFO)


class HeadDecoder(Decoder):
    """Decodes heads for h2, but hides Content-Length from it."""

    # h2 ends the whole connection for a length that is malformed or differs from the body's; it has
    # no option for that. Here only the request ends.

    def __init__(self, longest: int) -> None:
        super().__init__(_HEADS_REFUSED_IN_WORDS * longest)

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        return [
            HeaderTuple(_CONTENT_LENGTH, field[1]) if field[0] == b"content-length" else field
            for field in super().decode(data, raw)
        ]


def read_head(parser: HeadParser, sent: Iterable[tuple[bytes, bytes]]) -> bool:
    """Parses a head; returns whether it asks for a WebSocket. Raises `BadRequest`."""
    try:
        pseudo, fields = _separated(sent)
        target = pseudo.get(b":path", b"")
        is_websocket = _is_websocket(pseudo)
        method = b"GET" if is_websocket else pseudo.get(b":method", b"")
        if method == b"CONNECT":
            raise BadRequest(400, "the method CONNECT, which is not offered")
        head = _as_http_1(method, target, fields)
        if find_end(head, parser.options.max_head_bytes) != len(head):
            raise BadRequest(400, "an empty line in a head")
    except BadRequest:
        parser.forget()
        raise
    parser.parse(head)
    if parser.headers != fields or parser.line.target != target:
        raise BadRequest(400, "a malformed header or path")
    if is_websocket:
        parser.check_handshake()
        if parser.length:
            raise BadRequest(400, "a WebSocket handshake with a body")
    return is_websocket


def check_trailers(trailers: Iterable[tuple[bytes, bytes]]) -> None:
    size = 0
    for name, value in trailers:
        if name != name.lower() or name in _OF_HTTP_1:
            raise BadRequest(400, "a malformed trailer")
        check_trailer(name, value)
        size += len(name) + len(value) + 4
    if size > MAX_TRAILERS:
        raise BadRequest(431, "too many trailers")


def _separated(sent: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], Headers]:
    """Returns the pseudo-headers, and the other fields with the authority as the host."""
    pseudo: dict[bytes, bytes] = {}
    fields: Headers = []
    for name, value in sent:
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or fields:
                raise BadRequest(400, "an unknown, repeated or late pseudo-header")
            pseudo[name] = value
        elif name in _OF_HTTP_1 or (name == b"te" and value.lower() != b"trailers"):
            raise BadRequest(400, "a header that HTTP/2 does not have")
        else:
            fields.append((b"content-length" if name is _CONTENT_LENGTH else name, value))
    if pseudo.get(b":scheme") not in (b"http", b"https"):
        raise BadRequest(400, "a scheme other than http or https")
    authority = pseudo.get(b":authority")
    if authority is not None:
        if any(name == b"host" and value != authority for name, value in fields):
            raise BadRequest(400, "two hosts")
        fields = [(b"host", authority), *(field for field in fields if field[0] != b"host")]
    return pseudo, fields


def _is_websocket(pseudo: dict[bytes, bytes]) -> bool:
    protocol = pseudo.get(b":protocol")
    if (protocol is not None) != (pseudo.get(b":method") == b"CONNECT"):
        raise BadRequest(400, "CONNECT without a protocol, or a protocol without CONNECT")
    if protocol is not None and protocol.lower() != b"websocket":
        raise BadRequest(501, "a protocol other than websocket")
    return protocol is not None


def _as_http_1(method: bytes, target: bytes, fields: Headers) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % field for field in fields)]
    head = b"\r\n".join([*lines, b"", b""])
    breaks = len(lines) + 1
    if head.count(b"\r") != breaks or head.count(b"\n") != breaks:
        raise BadRequest(400, "a line break in a head")
    return head
