"""MessagePack: items and results.

A header of five bytes may declare an array of four billion elements, and arrays in arrays cost one
byte each. The structure of a body is therefore walked first, which creates no objects. The body is
refused as soon as it declares more elements, or deeper nesting, than JSON may have. The same
estimate of memory as for JSON applies.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from shoal.core.extras import is_installed
from shoal.http.json.scan import (
    BYTES_PER_KEY,
    BYTES_PER_LIST,
    BYTES_PER_OBJECT,
    BYTES_PER_SCALAR,
    allowance_of,
    too_complex,
)
from shoal.http.requests.plain import packable
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from shoal.http.requests.exchange import Exchange

MSGPACK: Final = b"application/msgpack"
# All media types that clients use for it.
MSGPACK_NAMES: Final = (MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack")

_MOST_LEVELS: Final = 200

# The number of bytes after the first byte of an element without a length.
_FIXED: Final = {
    **dict.fromkeys([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3], 0),
    **dict(zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)),
    **{0xA0 + size: size for size in range(32)},
}
# The number of bytes in the length of text or bytes.
_LENGTHS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}

# Many numbers and short texts, which would be walked one by one otherwise.
_RUN: Final = 64
_SCALARS: Final = re.compile(
    rb"(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcf\xd3\xcb].{8}|[\xce\xd2\xca].{4}|[\xcc\xd0]."
    rb"|[\xcd\xd1].{2}|%b){64}+" % b"|".join(b"\\x%x.{%d}" % (0xA0 + n, n) for n in range(32)),
    re.DOTALL,
)


@cache
def has_msgpack() -> bool:
    return is_installed("ormsgpack")


def read_msgpack(exchange: Exchange, body: bytes) -> Any:
    """Reads MessagePack with text as keys, and without extension types."""
    import ormsgpack

    _check(body, exchange.options.max_json_elements)
    try:
        return ormsgpack.unpackb(body)
    except ValueError as error:
        raise _malformed(str(error)) from None


def packed(value: Any) -> bytes:
    """Raises TypeError if the result can't be written, such as a number of more than 64 bits."""
    import ormsgpack

    options = ormsgpack.OPT_SERIALIZE_NUMPY | ormsgpack.OPT_NON_STR_KEYS
    try:
        return ormsgpack.packb(packable(value), option=options)
    except RecursionError:
        raise TypeError("the result is nested too deeply, or contains itself") from None


def _check(body: bytes, max_elements: int) -> None:
    """Walks the elements of a body, and refuses malformed or too complex ones."""
    at, size = 0, len(body)
    allowance = allowance_of(size, max_elements)
    declared, cost = 1, 0
    open_containers: list[int] = []
    remaining = 1  # of the innermost container
    while True:
        while not remaining:
            if not open_containers:
                if at != size:
                    raise _malformed("its end is not where it says")
                return
            remaining = open_containers.pop()
        if remaining >= _RUN:
            run = _SCALARS.match(body, at)
            if run is not None:
                at, remaining = run.end(), remaining - _RUN
                continue
        if at >= size:
            raise _malformed("it ends too early")
        kind = body[at]
        at += 1
        remaining -= 1
        fixed = _FIXED.get(kind)
        if fixed is not None:
            at += fixed
            continue
        if kind in _LENGTHS:
            width = _LENGTHS[kind]
            at += width + int.from_bytes(body[at : at + width], "big")
            continue
        if 0x80 <= kind < 0xA0:
            count, is_map = kind & 15, kind < 0x90
        elif kind in _ARRAYS or kind in _MAPS:
            is_map = kind in _MAPS
            width = _MAPS[kind] if is_map else _ARRAYS[kind]
            count = int.from_bytes(body[at : at + width], "big")
            at += width
        else:
            raise _malformed("it has an extension type, or a byte that means nothing")
        if is_map:
            cost += BYTES_PER_OBJECT + count * BYTES_PER_KEY
            count *= 2
        else:
            cost += BYTES_PER_LIST
        declared += count
        cost += count * BYTES_PER_SCALAR
        if declared > max_elements or cost > allowance:
            raise too_complex(max_elements)
        open_containers.append(remaining)
        remaining = count
        if len(open_containers) > _MOST_LEVELS:
            raise _malformed(f"it is nested more than {_MOST_LEVELS} levels deep")


def _malformed(detail: str) -> Refused:
    return Refused.of("invalid-msgpack", f"The body: {detail}.")
