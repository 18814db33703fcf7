"""The bytes of an HTTP/1.1 answer: its head, and the framing of its body."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from shoal.asgi.header_check import FRAMING, is_sendable, not_sendable

if TYPE_CHECKING:
    from collections.abc import Iterable

# With the phrases of RFC 9110, which Python has from 3.13 on.
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
# The lines of headers that were checked, since most answers have the same few. Those that the
# server reads, and long ones, are not among them.
_lines: Final[dict[tuple[bytes, bytes], bytes]] = {}
_MOST_LINES: Final = 512
_LONGEST_LINE: Final = 256

END: Final = b"\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class AnswerHead:
    """The head of an answer.

    Args:
        status: The status.
        headers: The application's headers.

    Attributes:
        status: The status.
        has_body: Whether an answer with this status may have a body.
        length: The body's length in bytes, as the application declares it; None if it does not.
        closes: Whether the application asks to close the connection after this answer.

    Raises:
        ValueError: The status is not one of an answer, or a header would be read as something else.
    """

    __slots__ = ("_has_date", "_text", "closes", "has_body", "length", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.has_body = status not in (204, 304)
        self.length: int | None = None
        self.closes = self._has_date = False
        text = _STATUS_LINES.get(status) or status_line(status)
        for header in headers:
            try:
                line = _lines.get(header)
            except TypeError:  # a list, or one that has a bytearray
                line = None
            text += line or self._line(*header)
        self._text = text

    def encoded(self, framing: bytes, date: bytes) -> bytes:
        """Returns its bytes.

        Args:
            framing: Further lines, each with a line break before it.
            date: The line with the date, likewise.
        """
        if self._has_date:
            return self._text + framing + END
        return self._text + framing + date + END

    def _line(self, name: bytes, value: bytes) -> bytes:
        """Returns the line of a header; nothing if it is not sent.

        Raises:
            ValueError: It can't be sent.
        """
        if name == b"content-length" and self.length is None and value.isdigit():
            self.length = int(value)
            return b"" if self.status == 204 else b"\r\ncontent-length: " + value
        name, value = bytes(name), bytes(value)
        # A line break in a value would make the rest of it a header.
        if not is_sendable(name, value):
            raise not_sendable(name, value)
        line = b"\r\n%b: %b" % (name, value)
        match name.lower():
            case b"content-length":
                if not value.isdigit() or self.length is not None:
                    raise not_sendable(name, value)
                self.length = int(value)
                if self.status == 204:
                    return b""
            case b"connection":
                self.closes = self.closes or b"close" in value.lower()
                return b""
            case lower if lower in FRAMING:
                return b""
            case b"date":
                self._has_date = True
            case b"x-request-id":
                pass  # no other answer has this line
            case _ if len(line) <= _LONGEST_LINE:
                if len(_lines) >= _MOST_LINES:
                    _lines.clear()
                _lines[name, value] = line
            case _:
                pass
        return line


def status_line(status: int) -> bytes:
    """Returns the first line of an answer, without the line break.

    Raises:
        ValueError: The status is not one of an answer.
    """
    known = _STATUS_LINES.get(status)
    if known is not None:
        return known
    if not 200 <= status <= 999:
        raise ValueError(f"an answer has a status from 200 to 999, not {status}")
    return b"HTTP/1.1 %d " % status


def error_answer(status: int, text: str, date: bytes) -> bytes:
    """Returns a whole answer, after which the connection ends.

    Args:
        status: The status.
        text: The body.
        date: See `AnswerHead.encoded`.
    """
    body = f"{text}\n".encode() if text else b""
    headers = [(b"content-type", b"text/plain; charset=utf-8")] if text else []
    framing = b"\r\ncontent-length: %d\r\nconnection: close" % len(body)
    return AnswerHead(status, headers).encoded(framing, date) + body
