"""Content codings of requests and answers: gzip, deflate and zstd.

A compressed body may be a bomb: a few bytes that become gigabytes. So decompression stops as soon
as there is more than any body may have, or than a hundred times the compressed size.
"""

from __future__ import annotations

import sys
import zlib
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from shoal.core.extras import advice, is_installed
from shoal.http.requests.accept import weights
from shoal.http.requests.problem import Problem, Refused, too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MOST_TIMES: Final = 100
_FREE_BYTES: Final = 2**20
# Each member of a gzip file takes a decompressor; bgzip makes one of each 64 KiB.
_MOST_MEMBERS: Final = 1024
# How much is decompressed at once. What follows a member is copied, so it must not be the rest.
_STEP: Final = 2**16
# 8 MiB, which RFC 9659 allows for this coding.
_ZSTD_WINDOW_LOG: Final = 23
_ZSTD: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

_GZIP: Final = zlib.MAX_WBITS | 16
_ZLIB: Final = zlib.MAX_WBITS
_RAW_DEFLATE: Final = -zlib.MAX_WBITS


VARY: Final = (b"vary", b"accept-encoding")
"""The header of an answer that could have another coding for another client."""


def decoded(headers: Mapping[bytes, bytes], body: bytes, max_bytes: int) -> bytes:
    """Returns the body of a request without its content coding.

    Args:
        headers: The request's headers.
        body: Its body.
        max_bytes: The largest body that a request may have.

    Raises:
        Refused: The coding is not known (415), the body is not in it (400), or becomes too large
            (413).
    """
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    if coding in (b"identity", b"") or not body:
        return body
    most = min(max_bytes, _FREE_BYTES + _MOST_TIMES * len(body))
    if coding in (b"gzip", b"x-gzip"):
        found = _members(body, most, lambda: zlib.decompressobj(_GZIP))
    elif coding == b"deflate":
        # It means zlib's format, but some clients send the bare deflate format.
        form = _ZLIB if _is_zlib(body) else _RAW_DEFLATE
        found = _members(body, most, lambda: zlib.decompressobj(form))
    elif coding == b"zstd" and has_zstd():
        found = _members(body, most, _zstd_decompressor)
    else:
        raise _unknown_coding(coding)
    if found is not None:
        return found
    if most == max_bytes:
        raise too_large(most)
    raise _too_compressed()


class _Decompressor(Protocol):
    """What zlib's decompressors and zstd's have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _members(body: bytes, most: int, make: Callable[[], _Decompressor]) -> bytes | None:
    """Decompresses the members of a body, one after the other.

    Returns:
        The data; None if there is more than `most`.

    Raises:
        Refused: It is not in the coding's format.
    """
    pieces: list[bytes] = []
    left, at = most, 0
    for _ in range(_MOST_MEMBERS):
        part = make()
        while not part.eof:
            data = body[at : at + _STEP]
            at += len(data)
            try:
                # One byte more than there may be, which tells that there is more. So all of the
                # input is taken if there is not.
                piece = part.decompress(data, left + 1)
            except Exception:  # zlib's error, or zstd's
                raise _malformed() from None
            left -= len(piece)
            if left < 0:
                return None
            if not data and not part.eof:
                raise _malformed()  # it ends too early
            pieces.append(piece)
        at -= len(part.unused_data)
        if at == len(body):
            return b"".join(pieces)
    raise _malformed()


def _is_zlib(body: bytes) -> bool:
    return len(body) > 1 and body[0] & 15 == zlib.DEFLATED and (body[0] * 256 + body[1]) % 31 == 0


@cache
def has_zstd() -> bool:
    """Returns whether zstd is installed: part of Python since 3.14, before that a package."""
    return is_installed(_ZSTD)


def _zstd_decompressor() -> Any:
    zstd: Any = import_module(_ZSTD)
    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    )


def accepted_coding(accept_encoding: bytes) -> bytes | None:
    """Returns the coding that an answer is compressed by; None for none.

    Args:
        accept_encoding: The request's ``Accept-Encoding``; empty if it has none. If it gives zstd
            and gzip the same weight, zstd is taken.
    """
    if not accept_encoding:
        return None
    accepted = weights(accept_encoding)
    best, best_weight = None, 0.0
    for coding in _codings():
        weight = accepted.get(coding, accepted.get(b"*", 0.0))
        if weight > best_weight:
            best, best_weight = coding, weight
    return best if best_weight >= accepted.get(b"identity", 0.0) else None


class Compressor:
    """Compresses one answer.

    Args:
        coding: The content coding.
    """

    def __init__(self, coding: bytes) -> None:
        # At level 1: the levels above take several times as long for a tenth less.
        if coding == b"zstd":
            made: Any = import_module(_ZSTD).ZstdCompressor(1)
            self._message, self._end = made.FLUSH_BLOCK, made.FLUSH_FRAME
        else:
            made = zlib.compressobj(1, wbits=_GZIP)
            self._message, self._end = zlib.Z_SYNC_FLUSH, zlib.Z_FINISH
        self._take: Callable[[bytes], bytes] = made.compress
        self._flush: Callable[[int], bytes] = made.flush

    def compress(self, data: bytes) -> bytes:
        """Takes data, and returns what of all data is compressed already."""
        return self._take(data)

    def flush_message(self) -> bytes:
        """Returns the rest of what was taken, so that the client can read it."""
        return self._flush(self._message)

    def finish(self) -> bytes:
        """Returns the rest, and the end."""
        return self._flush(self._end)


def compressed(
    accept_encoding: bytes,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    least_bytes: int,
) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Compresses a whole answer, if the client accepts that.

    Args:
        accept_encoding: As for `accepted_coding`.
        body: The answer's body.
        headers: Its headers.
        least_bytes: A smaller body is left as it is.

    Returns:
        The body and the headers.
    """
    headers = (*headers, VARY)
    if len(body) < least_bytes or any(name == b"content-encoding" for name, _ in headers):
        return body, headers
    coding = accepted_coding(accept_encoding)
    if coding is None:
        return body, headers
    made = Compressor(coding)
    return made.compress(body) + made.finish(), (*headers, (b"content-encoding", coding))


def _codings() -> tuple[bytes, ...]:
    return (b"zstd", b"gzip") if has_zstd() else (b"gzip",)


def _unknown_coding(coding: bytes) -> Refused:
    names = "gzip, deflate, zstd" if has_zstd() else "gzip, deflate"
    is_missing = coding == b"zstd" and not has_zstd()
    hint = f" The server needs {advice('bodies')} for zstd." if is_missing else ""
    return Refused(
        Problem(
            415,
            "unsupported-content-coding",
            "The content coding is not supported",
            f"A body may have one Content-Encoding of {names}, or none.{hint}",
            ((b"accept-encoding", names.encode("ascii")),),
        )
    )


def _malformed() -> Refused:
    return Refused(
        Problem(
            400,
            "invalid-content-coding",
            "The body is not in its content coding",
            "It can't be decompressed as its Content-Encoding says, or ends too early.",
        )
    )


def _too_compressed() -> Refused:
    return Refused(
        Problem(
            413,
            "body-too-large",
            "The body is too large",
            f"A body of more than {_FREE_BYTES} bytes may be compressed to a hundredth at most.",
        )
    )
