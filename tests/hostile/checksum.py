"""What the application answers with, and what its clients expect."""

import zlib


def checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
