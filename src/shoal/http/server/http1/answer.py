"""The bytes of an HTTP/1.1 answer: its head, and the framing of its body."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

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
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Names that need no check, and that the server does not read.
_PLAIN_NAMES: Final = frozenset(
    {
        *(b"content-type", b"x-request-id", b"cache-control", b"retry-after", b"server"),
        *(b"x-accel-buffering", b"vary", b"allow", b"etag", b"location", b"last-modified"),
    }
)

LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class AnswerHead:
    """The head of an answer.

    Args:
        status: The status.
        headers: The application's headers.

    Attributes:
        status: The status.
        length: The body's length in bytes, as the application declares it; None if it does not.
        closes: Whether the application asks to close the connection after this answer.

    Raises:
        ValueError: The status is not one of an answer, or a header would be read as something else.
    """

    __slots__ = ("_has_date", "_parts", "closes", "length", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if not 200 <= status <= 999:
            raise ValueError(f"an answer has a status from 200 to 999, not {status}")
        self.status = status
        self.length: int | None = None
        self.closes = self._has_date = False
        self._parts = parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        for name, value in headers:
            if name in _PLAIN_NAMES:
                parts += (b"\r\n", name, b": ", value)
            elif name == b"content-length" and value.isdigit() and self._may_have_length():
                self.length = int(value)
                parts += (b"\r\n", name, b": ", value)
            elif self._takes(name, value):
                parts += (b"\r\n", name, b": ", value)

    @property
    def has_body(self) -> bool:
        """Whether an answer with this status may have a body."""
        return self.status != 204 and self.status != 304

    def encoded(self, framing: bytes, date: bytes) -> bytes:
        """Returns its bytes.

        Args:
            framing: Further lines, each with a line break before it.
            date: The line with the date, likewise.

        Raises:
            ValueError: A header can't be sent.
        """
        parts = self._parts
        # Checked for all at once: a line break in a value would make the rest of it a header.
        lines = len(parts) // 4
        parts.append(framing)
        if not self._has_date:
            parts.append(date)
            lines += 1
        parts.append(b"\r\n\r\n")
        head = b"".join(parts)
        lines += framing.count(b"\n") + 2
        if not head.count(b"\n") == head.count(b"\r") == lines or b"\0" in head:
            for name, value in zip(parts[2:-2:4], parts[4:-2:4], strict=False):
                if re.search(rb"[\r\n\0]", value):
                    raise _not_sendable(name, value)
        return head

    def _may_have_length(self) -> bool:
        return self.length is None and self.status != 204

    def _takes(self, name: bytes, value: bytes) -> bool:
        """Notes a header that the server reads; returns whether it is sent as it is.

        Raises:
            ValueError: It can't be sent.
        """
        match bytes(name).lower():
            case b"content-length":
                if not value.isdigit() or self.length is not None:
                    raise _not_sendable(name, value)
                self.length = int(value)
                return self.status != 204
            case b"transfer-encoding":
                return False  # the server decides on it
            case b"connection":
                self.closes = self.closes or b"close" in value.lower()
                return False
            case b"date":
                self._has_date = True
            case other if not _NAME.fullmatch(other):
                raise _not_sendable(name, value)
            case _:
                pass
        return True


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


def _not_sendable(name: Any, value: Any) -> ValueError:
    return ValueError(
        f"the header {name!r} can't be sent with the value {value!r}: a name consists of letters, "
        "digits and hyphens, and a value has no line breaks or control characters"
    )
