"""What the application answers with, and what its clients expect."""

from __future__ import annotations

import zlib


def checksum(text: str) -> int:
    """The checksum of a text."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
