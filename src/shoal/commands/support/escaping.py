"""Escapes text from others, so that it can't control a terminal or forge lines."""

from __future__ import annotations

from typing import Final

# Control characters except tab and line feed, line separators, and marks of text direction.
_ESCAPED: Final = {
    code: f"\\u{code:04x}"
    for code in (
        *(*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)),
        *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    )
}


def printable(text: str) -> str:
    """Escapes control characters except line feeds and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPED)


def indented(text: str) -> str:
    """Escapes text, and indents its lines after the first, so that they forge no record."""
    return printable(text).replace("\n", "\n  ")
