"""The datatypes of tensors, and the tensor of an input.

The elements of a tensor are checked against its shape and its datatype.

A tensor in JSON has its elements flat, or nested as its shape says. All sizes are compared with
each other before anything is made of them: the elements that a shape declares must be there. A
dimension of 0 needs none, so it counts as 1 where the lists of a shape are counted.
"""

from __future__ import annotations

import math
import struct
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The datatype of text and bytes; its elements have different lengths.
BYTES: Final = "BYTES"

# The upper half of a 32-bit float, which neither Python nor numpy has.
BF16: Final = "BF16"


@dataclass(frozen=True, slots=True)
class Datatype:
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


class Allowance:
    """How many elements, and lists of them, the inputs of one request may become in Python."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = {"elements": 0, "lists": 0}

    def take(self, tensor: Tensor, count: int, kind: str) -> None:
        self._made[kind] += count
        if self._made[kind] > self._most:
            tensor.refuse(
                f"has more than {self._most} {kind}, with those of the inputs before it; inputs "
                "of numbers that the model takes as arrays have no such limit"
            )


class Tensor:
    """The tensor of an input; raises `Refused` if it is malformed."""

    # Defaults that most tensors keep.
    _flat: list[Any] | None = None
    # None for JSON, and before it is `filled`.
    data: memoryview | None = None

    def __init__(self, described: Mapping[str, Any], allowance: Allowance) -> None:
        self.name: str = described["name"]
        # Of the bytes that follow the JSON; None if the elements are in it.
        self.size = self._size_in(described)
        datatype = DATATYPES.get(described["datatype"])
        if datatype is None:
            self.refuse(f"has no datatype of the protocol: {', '.join(DATATYPES)}")
        self.datatype: Datatype = datatype
        self.shape: list[int] = described["shape"]
        if not self.shape:
            self.refuse("has no dimension: the first is the number of rows")
        self._count = count = math.prod(self.shape)
        self._allowance = allowance
        if self.size is None:
            self._flat = self._of_json(described["data"], count)
        elif datatype.size and self.size != count * datatype.size:
            self.refuse(
                f"has {self.size} bytes, but {count} elements of {datatype.name} have "
                f"{count * datatype.size}"
            )

    def filled(self, data: memoryview, allowance: Allowance) -> Tensor:
        made = copy(self)
        made.data, made._allowance = data, allowance
        if self.datatype.name == BYTES:
            made._flat = made._strings(data, self._count)
        return made

    @property
    def elements(self) -> list[Any]:
        """Its elements as Python values, in row-major order; text of JSON as UTF-8."""
        if self._flat is None:
            assert self.data is not None
            self._allowance.take(self, self._count, "elements")
            self._flat = list(self.datatype.values(self.data))
        return self._flat

    @property
    def rows(self) -> list[Any]:
        """Its rows as Python values: elements, or nested lists of them."""
        shape = self.shape
        lists = count = 1
        for size in shape[:-1]:
            count *= size or 1
            lists += count
        self._allowance.take(self, lists, "lists")
        return nested(self.elements, shape)

    def refuse(self, what: str) -> NoReturn:
        raise malformed(f"The input {self.name!r} {what}.")

    def _size_in(self, described: Mapping[str, Any]) -> int | None:
        parameters: Mapping[str, Any] = described.get("parameters") or {}
        size: int | None = parameters.get("binary_data_size")
        if (size is None) == (described.get("data") is None):
            raise malformed(f"The input {self.name!r} needs data, or a binary_data_size.")
        return size

    def _of_json(self, data: list[Any], count: int) -> list[Any]:
        kinds = set(map(type, data))
        datatype = self.datatype
        if list in kinds:
            data = self._flattened(data)
            kinds = set(map(type, data))
        if len(data) != count:
            self.refuse(f"has {len(data)} elements, but its shape has {count}")
        if not kinds <= datatype.kinds:
            self.refuse(f"has an element that is no {datatype.name}")
        if not data:
            return data
        if datatype.name == BYTES:
            return [text.encode() for text in data]
        if int not in kinds and datatype.code in "?d":
            return data  # they fit
        if min(data) < datatype.low or max(data) > datatype.high:
            self.refuse(f"has a number that does not fit into {datatype.name}")
        return list(map(float, data)) if int in kinds and datatype.element is float else data

    def _flattened(self, data: list[Any]) -> list[Any]:
        level: list[Any] = [data]
        for size in self.shape:
            if set(map(type, level)) - {list} or set(map(len, level)) - {size}:
                self.refuse("is not nested as its shape says")
            level = list(chain.from_iterable(level))
        return level

    def _strings(self, data: memoryview, count: int) -> list[bytes]:
        """Returns the elements, each of which has its length in front, in four bytes."""
        self._allowance.take(self, count, "elements")
        strings: list[bytes] = []
        at = 0
        for _ in range(count):
            start = at + 4
            at = start + int.from_bytes(data[at:start], "little")
            if at > data.nbytes:
                self.refuse("has an element that is longer than its data")
            strings.append(bytes(data[start:at]))
        if at != data.nbytes:
            self.refuse(f"has {data.nbytes - at} bytes after its last element")
        return strings


def nested(flat: list[Any], shape: list[int]) -> list[Any]:
    """Returns the rows of elements in row-major order."""
    if not flat:
        return _empty(shape)
    for size in reversed(shape[1:]):
        whole = len(flat)
        flat = [flat] if whole == size else [flat[at : at + size] for at in range(0, whole, size)]
    return flat


def _empty(shape: list[int]) -> list[Any]:
    return [_empty(shape[1:]) for _ in range(shape[0])] if shape else []


def not_fitting(detail: str) -> Refused:
    return Refused(Problem(400, "invalid-item", "The request does not fit the model", detail))


def malformed(detail: str) -> Refused:
    return Refused(Problem(400, "malformed-request", "The request is malformed", detail))
