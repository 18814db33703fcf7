"""Content codings of request bodies: gzip and deflate.

A compressed body may be a bomb: a few bytes that become gigabytes. Decompression therefore stops at
the largest allowed body, and at a hundred times the compressed size.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from shoal.http.requests.problem import Refused, too_large

if TYPE_CHECKING:
    from shoal.http.requests.exchange import Exchange

_MOST_TIMES: Final = 100
_FREE_BYTES: Final = 2**20
# Each member of a gzip file takes a decompressor; bgzip makes one of each 64 KiB.
_MOST_MEMBERS: Final = 1024
# The bytes that are decompressed at once. The input after a member is copied, so it is short.
_STEP: Final = 2**16

_GZIP: Final = zlib.MAX_WBITS | 16


def decompressed(exchange: Exchange, body: bytes) -> bytes:
    """Returns a body without its content coding; raises `Refused` with 415, 400 or 413."""
    coding = exchange.headers.get(b"content-encoding")
    if coding is None or not body:
        return body
    coding = coding.strip().lower()
    if coding in (b"identity", b""):
        return body
    most = min(exchange.options.max_body_bytes, _FREE_BYTES + _MOST_TIMES * len(body))
    if coding in (b"gzip", b"x-gzip"):
        data = _members(body, most, _GZIP)
    elif coding == b"deflate":
        data = _members(body, most, zlib.MAX_WBITS)
    else:
        detail = "A body may have one Content-Encoding of gzip or deflate, or none."
        accepted = ((b"accept-encoding", b"gzip, deflate"),)
        raise Refused.of("unsupported-content-coding", detail, accepted)
    if data is None:
        raise too_large(most)
    return data


def _members(body: bytes, most: int, window_bits: int) -> bytes | None:
    """Decompresses the members of a body one after the other; None if larger than `most`."""
    pieces: list[bytes] = []
    room, at = most, 0
    for _ in range(_MOST_MEMBERS):
        part = zlib.decompressobj(window_bits)
        while not part.eof:
            data = body[at : at + _STEP]
            at += len(data)
            try:
                # One byte more than allowed, to detect a larger body. Otherwise all of the input
                # is consumed.
                piece = part.decompress(data, room + 1)
            except zlib.error:
                raise _malformed() from None
            room -= len(piece)
            if room < 0:
                return None
            if not data and not part.eof:
                raise _malformed()  # it ends too early
            pieces.append(piece)
        at -= len(part.unused_data)
        if at == len(body):
            return b"".join(pieces)
    raise _malformed()


def _malformed() -> Refused:
    detail = "It can't be decompressed as its Content-Encoding says, or ends too early."
    return Refused.of("invalid-content-coding", detail)
