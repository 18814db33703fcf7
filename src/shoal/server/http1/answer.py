"""The bytes of an HTTP/1.1 response: its head, and the framing of its body."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from shoal.asgi.header_check import FRAMING, is_sendable, is_value, not_sendable

if TYPE_CHECKING:
    from collections.abc import Iterable

# These have the phrases of RFC 9110, which Python has from 3.13 on.
_PHRASES: Final = {
    **{int(status): status.phrase for status in HTTPStatus if status >= 200},
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {phrase}".encode("ascii") for status, phrase in _PHRASES.items()
}
# The lines of checked headers, since most responses have the same few. Long lines, and headers that
# the server reads, are not kept.
_lines: Final[dict[tuple[bytes, bytes], bytes]] = {}
_MOST_LINES: Final = 512
_LONGEST_LINE: Final = 256

# The statuses of responses without a body.
WITHOUT_BODY: Final = frozenset({204, 304})
END: Final = b"\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def answer_head(
    status: int, headers: Iterable[tuple[bytes, bytes]], date: bytes
) -> tuple[bytes, int | None, bool]:
    """Returns the lines before framing and `END`, the Content-Length, and whether it closes."""
    # Raises ValueError for an invalid status, or a header that could be read in another way.
    text = _STATUS_LINES.get(status) or status_line(status)
    length: int | None = None
    closes = False
    for header in headers:
        try:
            line = _lines.get(header)
        except TypeError:  # the header is a list, or contains a bytearray
            line = None
        if line is not None:
            text += line
            continue
        name, value = header
        # First the two that differ between responses.
        if name == b"content-length" and length is None and status != 204 and value.isdigit():
            length = int(value)
            text += b"\r\ncontent-length: " + value
            continue
        if name == b"x-request-id" and is_value(value):
            text += b"\r\nx-request-id: " + value
            continue
        name, value = bytes(name), bytes(value)
        # A line break in a value would make the rest of it a header.
        if not is_sendable(name, value):
            raise not_sendable(name, value)
        line = b"\r\n%b: %b" % (name, value)
        match name.lower():
            case b"content-length":
                if not value.isdigit() or length is not None:
                    raise not_sendable(name, value)
                length = int(value)
                line = line if status != 204 else b""
            case b"connection":
                closes = closes or b"close" in value.lower()
                line = b""
            case lower if lower in FRAMING:
                line = b""
            case b"date":
                date = b""
            case _ if len(line) <= _LONGEST_LINE:
                if len(_lines) >= _MOST_LINES:
                    _lines.clear()
                _lines[name, value] = line
            case _:
                pass
        text += line
    return text + date, length, closes


def status_line(status: int) -> bytes:
    """Returns the first line without its line break; raises `ValueError` for a bad status."""
    known = _STATUS_LINES.get(status)
    if known is not None:
        return known
    if not 200 <= status <= 999:
        raise ValueError(f"an answer has a status from 200 to 999, not {status}")
    return b"HTTP/1.1 %d " % status


def error_answer(status: int, text: str, date: bytes) -> bytes:
    """Returns a whole response, after which the connection ends."""
    body = f"{text}\n".encode() if text else b""
    headers = [(b"content-type", b"text/plain; charset=utf-8")] if text else []
    lines, _, _ = answer_head(status, headers, date)
    return lines + b"\r\ncontent-length: %d\r\nconnection: close" % len(body) + END + body
