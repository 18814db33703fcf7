"""The datatypes of tensors: their names, their bytes, and the values that they have in JSON."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BYTES: Final = "BYTES"
"""The datatype of text and bytes, whose elements have a length each."""

BF16: Final = "BF16"
"""The upper half of a 32-bit float, which neither Python nor numpy has."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype of tensors."""

    name: str
    # In bytes; 0 if each element has its own size.
    size: int
    # Of an element in `struct`; of the float that is read for a BF16.
    code: str
    # The Python types that an element in JSON may have.
    kinds: frozenset[type]
    element: type
    low: float = 0
    high: float = 1

    @property
    def numpy_name(self) -> str:
        """The name of its array's dtype; of a 32-bit float for BF16."""
        if self.code == "?":
            return "?"
        kind = "f" if self.element is float else "u" if self.low == 0 else "i"
        return f"<{kind}{4 if self.name == BF16 else self.size}"

    def values(self, data: memoryview) -> tuple[Any, ...]:
        count = data.nbytes // self.size
        data = widened(data) if self.name == BF16 else data
        return struct.unpack(f"<{count}{self.code}", data)

    def written(self, values: Sequence[Any]) -> bytes:
        return struct.pack(f"<{len(values)}{self.code}", *values)


def widened(data: memoryview) -> memoryview:
    """Returns the 32-bit floats of BF16 elements, both as bytes."""
    wide = bytearray(2 * data.nbytes)
    wide[2::4] = data[0::2]
    wide[3::4] = data[1::2]
    return memoryview(wide)


def _integer(bits: int, code: str, *, signed: bool) -> Datatype:
    name = f"{'' if signed else 'U'}INT{bits}"
    low = -(2 ** (bits - 1)) if signed else 0
    return Datatype(name, bits // 8, code, frozenset({int}), int, low, low + 2**bits - 1)


def _float(name: str, size: int, code: str, high: float) -> Datatype:
    return Datatype(name, size, code, frozenset({int, float}), float, -high, high)


_ALL: Final = (
    Datatype("BOOL", 1, "?", frozenset({bool}), bool),
    *[
        _integer(bits, code.upper() if not signed else code, signed=signed)
        for bits, code in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))
        for signed in (False, True)
    ],
    _float("FP16", 2, "e", 65504.0),
    _float("FP32", 4, "f", (2 - 2**-23) * 2.0**127),
    _float("FP64", 8, "d", (2 - 2**-52) * 2.0**1023),
    _float(BF16, 2, "f", (2 - 2**-7) * 2.0**127),
    Datatype(BYTES, 0, "", frozenset({str}), bytes),
)

DATATYPES: Final[Mapping[str, Datatype]] = {one.name: one for one in _ALL}
"""All datatypes, by name."""
