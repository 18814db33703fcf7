"""A check of the headers that an application sends, against header injection."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LONGEST_SHOWN: Final = 64
WRONG_LENGTH: Final = "the body has another length than the Content-Length says"
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Checks that names and values of headers are valid, so that none injects another header.

    Not every server and protocol checks this: HTTP/2 carries line breaks, and a proxy that passes
    them on as HTTP/1.1 sends the text after them as further headers.

    Raises:
        ValueError: A name or a value is invalid.
    """
    for name, value in headers:
        if not is_sendable(name, value):
            raise not_sendable(name, value)


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Checks headers, and returns the Content-Length among them; None if there is none.

    Raises:
        ValueError: A name or a value is invalid, or the length is, or there are two.
    """
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
    """Returns whether a header's name and value are valid."""
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def not_sendable(name: bytes, value: bytes) -> ValueError:
    """Returns the error about an invalid header. It has no value, which callers may have sent."""
    return ValueError(
        f"the header {name[:_LONGEST_SHOWN]!r} can't be sent with its value of {len(value)} bytes: "
        "a name consists of letters, digits and hyphens, and a value has no line breaks or control "
        "characters"
    )
