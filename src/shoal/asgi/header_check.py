"""A check of the headers that an application sends, against header injection."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LONGEST_SHOWN: Final = 64
WRONG_LENGTH: Final = "the length of the body differs from the Content-Length"
is_value: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
# Only the server decides where a message and its connection end.
FRAMING: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade"),
    }
)
_OF_THE_SERVER: Final = FRAMING | {b"content-length", b"x-request-id"}
_log: Final = logging.getLogger("shoal.http")


def headers_of_code(
    chosen: Iterable[tuple[object, object]], without: Container[bytes] = ()
) -> list[tuple[bytes, bytes]]:
    """Returns the headers that user code chose, in lower case; raises `ValueError`."""
    # Headers that the server sets are left out. Values that are not text are left out and logged.
    headers: list[tuple[bytes, bytes]] = []
    for name, value in chosen:
        if not isinstance(name, (str, bytes)) or not isinstance(value, (str, bytes, int, float)):
            kinds = f"{type(name).__name__} and {type(value).__name__}"
            _log.error("a header of %s is left out: its name and value must be text", kinds)
            continue
        pair = _octets(name).lower(), _octets(value)
        if pair[0] not in _OF_THE_SERVER and pair[0] not in without:
            headers.append(pair)
    check_headers(headers)
    return headers


def _octets(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("latin-1", "replace")


def check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `ValueError` for an invalid name or value, which could inject a header."""
    # Not every server and protocol checks this. HTTP/2 carries line breaks, and a proxy that
    # converts to HTTP/1.1 sends the text after a line break as further headers.
    for name, value in headers:
        if not is_sendable(name, value):
            raise not_sendable(name, value)


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Checks headers, and returns their Content-Length, if any; raises `ValueError`."""
    length: int | None = None
    for name, value in headers:
        if not is_sendable(name, value):
            raise not_sendable(name, value)
        if name.lower() == b"content-length":
            if length is not None or not value.isdigit():
                raise not_sendable(name, value)
            length = int(value)
    return length


def is_sendable(name: bytes, value: bytes) -> bool:
    return _NAME.fullmatch(name) is not None and is_value(value) is not None


def not_sendable(name: bytes, value: bytes) -> ValueError:
    """Returns the error, without the value, which may be a caller's secret."""
    return ValueError(
        f"the header {name[:_LONGEST_SHOWN]!r} can't be sent with its value of {len(value)} bytes: "
        "a name consists of letters, digits and hyphens, and a value has no line breaks or control "
        "characters"
    )
