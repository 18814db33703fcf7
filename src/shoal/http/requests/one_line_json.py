"""JSON that every reader takes for one line."""

from __future__ import annotations

from typing import Final

_ESCAPES: Final = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def one_line_json(text: bytes) -> bytes:
    """Returns JSON with escapes for NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR.

    JSON may contain these, but `str.splitlines` and the readers that use it end a line there.

    Args:
        text: JSON on one line, in UTF-8.
    """
    if not text.isascii():
        for separator, escape in _ESCAPES:
            text = text.replace(separator, escape)
    return text
