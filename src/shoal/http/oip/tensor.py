"""The tensor of an input: its elements are checked against its shape and its datatype.

A tensor in JSON has its elements flat, or nested as its shape says. All sizes are compared with
each other before anything is made of them: the elements that a shape declares must be there. A
dimension of 0 needs none, so it is counted as 1 where the lists of a shape are counted.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.http.oip.datatypes import BYTES, DATATYPES, Datatype
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.serving.http_options import HttpOptions


class Tensor:
    """The tensor of an input.

    Args:
        given: Its description.
        data: Its elements as bytes; None if they are in its description.
        options: The options of the server.

    Attributes:
        name: Its name.
        datatype: Its datatype.
        shape: Its shape, whose first dimension is the number of rows.
        data: Its elements as bytes; None if they came as JSON.

    Raises:
        Refused: Its data does not have its shape and its datatype.
    """

    __slots__ = ("_flat", "_most_elements", "data", "datatype", "name", "shape")

    def __init__(
        self, given: Mapping[str, Any], data: memoryview | None, options: HttpOptions
    ) -> None:
        self.name: str = given["name"]
        datatype = DATATYPES.get(given["datatype"])
        if datatype is None:
            self.refuse(f"has no datatype of the protocol: {', '.join(DATATYPES)}")
        self.datatype: Datatype = datatype
        self.shape: list[int] = given["shape"]
        self.data = data
        self._most_elements = options.max_json_elements
        if not self.shape:
            self.refuse("has no dimension: the first is the number of rows")
        count = math.prod(self.shape)
        self._flat: list[Any] | None
        if data is None:
            self._flat = self._of_json(given["data"], count)
        else:
            self._check_size(data.nbytes, count)
            self._flat = self._strings(data, count) if datatype.name == BYTES else None

    @property
    def elements(self) -> list[Any]:
        """Its elements as Python values, in row-major order; text of JSON as UTF-8.

        Raises:
            Refused: There are more than a request may have.
        """
        if self._flat is None:
            assert self.data is not None
            if self.data.nbytes // self.datatype.size > self._most_elements:
                self.refuse(
                    f"has more than {self._most_elements} elements, and the model does not take "
                    "it as an array"
                )
            self._flat = list(self.datatype.values(self.data))
        return self._flat

    @property
    def rows(self) -> list[Any]:
        """Its rows as Python values: elements, or nested lists of them.

        Raises:
            Refused: As for `elements`.
        """
        lists = count = 1
        for size in self.shape[:-1]:
            count *= size or 1
            lists += count
        if lists > self._most_elements:
            self.refuse(f"has a shape of {lists} lists, and {self._most_elements} are allowed")
        return nested(self.elements, self.shape)

    def refuse(self, what: str) -> NoReturn:
        """Refuses it.

        Raises:
            Refused: Always.
        """
        raise Refused(malformed(f"The input {self.name!r} {what}."))

    def _of_json(self, data: list[Any], count: int) -> list[Any]:
        kinds = set(map(type, data))
        if list in kinds:
            data = self._flattened(data)
            kinds = set(map(type, data))
        if len(data) != count:
            self.refuse(f"has {len(data)} elements, but its shape has {count}")
        datatype = self.datatype
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

    def _check_size(self, given: int, count: int) -> None:
        size = self.datatype.size
        if size and given != count * size:
            self.refuse(
                f"has {given} bytes, but {count} elements of {self.datatype.name} have "
                f"{count * size}"
            )

    def _strings(self, data: memoryview, count: int) -> list[bytes]:
        """Returns the elements, each of which has its length in front, in four bytes."""
        if count > self._most_elements:
            self.refuse(f"has more than {self._most_elements} elements")
        found: list[bytes] = []
        at = 0
        for _ in range(count):
            start = at + 4
            at = start + int.from_bytes(data[at:start], "little")
            if at > data.nbytes:
                self.refuse("has an element that is longer than its data")
            found.append(bytes(data[start:at]))
        if at != data.nbytes:
            self.refuse(f"has {data.nbytes - at} bytes after its last element")
        return found


def nested(flat: list[Any], shape: list[int]) -> list[Any]:
    """Returns the rows of a tensor, whose elements are given in row-major order."""
    if not flat:
        return _empty(shape)
    for size in reversed(shape[1:]):
        whole = len(flat)
        flat = [flat] if whole == size else [flat[at : at + size] for at in range(0, whole, size)]
    return flat


def _empty(shape: list[int]) -> list[Any]:
    return [_empty(shape[1:]) for _ in range(shape[0])] if shape else []


def malformed(detail: str) -> Problem:
    """Returns the problem of a request that is not as the protocol has it."""
    return Problem(400, "malformed-request", "The request is malformed", detail)


def not_fitting(detail: str) -> Problem:
    """Returns the problem of a request that does not fit its model."""
    return Problem(400, "invalid-item", "The request does not fit the model", detail)
