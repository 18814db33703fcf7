"""What the application answers with and its clients expect, and how long any of them waits.

The programs here run apart from pytest.
"""

import zlib

HANG_S = 60


def checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
