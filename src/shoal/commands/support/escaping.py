"""Makes text that others chose safe to print: it can't control a terminal, or forge lines."""

from __future__ import annotations

from typing import Final

# Control characters but tab and line feed, line separators, and what changes the direction of text.
_ESCAPED: Final = {
    code: f"\\u{code:04x}"
    for code in (
        *(*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)),
        *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    )
}


def printable(text: str) -> str:
    """Returns text whose control characters, but line feeds and tabs, are written as escapes."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPED)


def indented(text: str) -> str:
    """Returns printable text whose lines behind the first one can't be taken for others."""
    return printable(text).replace("\n", "\n  ")
