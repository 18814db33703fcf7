"""The body of an HTTP/1.1 request, delimited in the bytes after its head.

A chunked body is read here rather than by llhttp. llhttp accepts chunk extensions: nobody uses
them, and servers and proxies have disagreed on where they end.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.asgi.headers import BadRequest, is_sendable

# A size may have leading zeros, up to a limit.
_SIZE_LINE: Final = re.compile(rb"0{0,64}([0-9A-Fa-f]{1,15})\r\n")
_START_OF_SIZE_LINE: Final = re.compile(rb"(?:0{0,64}[0-9A-Fa-f]{1,15}\r?)?")
# The largest trailers of a request, in bytes.
MAX_TRAILERS: Final = 2**13


class SizedBody:
    """A body of a known length. `feed` returns the body's part of the data, and the rest."""

    def __init__(self, length: int) -> None:
        self._remaining = length  # more than 0
        self.is_complete = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if len(data) < self._remaining:
            self._remaining -= len(data)
            return data, b""
        self.is_complete = True
        return data[: self._remaining], data[self._remaining :]


class ChunkedBody:
    """A body in chunks. Its trailers are checked and dropped. `feed` raises `BadRequest`."""

    def __init__(self) -> None:
        self.is_complete = False
        self._incomplete_line = b""
        self._remaining = 0  # bytes of the current chunk
        self._needs_break = False  # the line break after a chunk comes next
        self._trailers = -1  # bytes of trailers so far; negative before the last chunk

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if self._incomplete_line:
            data, self._incomplete_line = self._incomplete_line + data, b""
        pieces: list[bytes] = []
        at = 0
        while self._trailers < 0:
            if self._remaining:
                piece = data[at : at + self._remaining]
                pieces.append(piece)
                at += len(piece)
                self._remaining -= len(piece)
                if self._remaining:
                    return b"".join(pieces), b""
                self._needs_break = True
            if self._needs_break:
                line_break = data[at : at + 2]
                if line_break in (b"", b"\r"):
                    self._incomplete_line = line_break
                    return b"".join(pieces), b""
                if line_break != b"\r\n":
                    raise BadRequest(400, "a chunk longer than its size")
                at += 2
                self._needs_break = False
            size_line = _SIZE_LINE.match(data, at)
            if size_line is None:
                self._incomplete_line = data[at:]
                if not _START_OF_SIZE_LINE.fullmatch(self._incomplete_line):
                    raise BadRequest(400, "a malformed chunk, or one with an extension")
                return b"".join(pieces), b""
            at = size_line.end()
            self._remaining = int(size_line[1], 16)
            if not self._remaining:
                self._trailers = 0
        return b"".join(pieces), self._take_trailers(data, at)

    def _take_trailers(self, data: bytes, at: int) -> bytes:
        while True:
            end = data.find(b"\n", at)
            if end < 0:
                self._incomplete_line = data[at:]
                if self._trailers + len(self._incomplete_line) > MAX_TRAILERS:
                    raise BadRequest(431, "too many trailers")
                return b""
            line = data[at : end + 1]
            at = end + 1
            if line == b"\r\n":
                self.is_complete = True
                return data[at:]
            self._trailers += len(line)
            name, colon, value = line[:-2].partition(b":")
            if not (colon and line.endswith(b"\r\n")):
                raise BadRequest(400, "a malformed trailer")
            check_trailer(name, value)
            if self._trailers > MAX_TRAILERS:
                raise BadRequest(431, "too many trailers")


def check_trailer(name: bytes, value: bytes) -> None:
    if not is_sendable(name, value):
        raise BadRequest(400, "a malformed trailer")
