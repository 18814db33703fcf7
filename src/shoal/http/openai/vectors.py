"""Results that are numbers, or vectors of them."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from shoal.http.openai.errors import refused
from shoal.http.requests.plain import encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.http.requests.problem import Refused

_LISTS: Final = frozenset({list, tuple})
_IN_NULL: Final = ord("n")
_IS_LITTLE: Final = sys.byteorder == "little"


def in_json(result: Any) -> bytes:
    """Raises `Refused` if a result is no vector, or has a number that is not finite."""
    vector_of(result, "embeddings")
    written = encoded(result)
    if _IN_NULL in written:  # infinity and NaN are written as null; numbers have no letter n
        raise _not_finite("an embedding")
    return written


def in_base64(result: Any) -> bytes:
    """Returns the base64 of 32-bit floats; raises `Refused` as `in_json` does."""
    try:
        numbers = array("f", vector_of(result, "embeddings"))
    except OverflowError:
        raise _not_finite("an embedding") from None
    if not math.isfinite(sum(numbers)):  # the sum of finite 32-bit numbers fits into 64 bits
        raise _not_finite("an embedding")
    if not _IS_LITTLE:
        numbers.byteswap()
    return b'"%b"' % base64.b64encode(numbers.tobytes())


def vector_of(result: Any, what: str) -> Sequence[Any]:
    """Returns the numbers of a vector; raises `Refused` if it is none."""
    vector: object = result.tolist() if hasattr(result, "tolist") else result
    if type(vector) in _LISTS:
        values: Sequence[Any] = vector  # type: ignore[assignment]  # a list or a tuple
        if all(issubclass(kind, Real) for kind in set(map(type, values))):
            return values
    raise refused(
        f"The model gives no {what}: a result must be a vector of numbers, not {_form(vector)}",
        param="model",
    )


def finite_vector(result: Any, what: str) -> list[float]:
    return [finite(one, what) for one in vector_of(result, what)]


def number_of(result: Any, what: str) -> float:
    """Returns a number, alone or as the only one of a vector; raises `Refused` if it is none."""
    number: object = result.tolist() if hasattr(result, "tolist") else result
    if type(number) in _LISTS:
        values: Sequence[Any] = number  # type: ignore[assignment]  # a list or a tuple
        if len(values) == 1:
            number = values[0]
    if isinstance(number, Real):
        return finite(number, what)
    raise refused(
        f"The model gives no {what}: a result must be a number, not {_form(number)}", param="model"
    )


def finite(number: Any, what: str) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise _not_finite(what)
    return value


def _not_finite(what: str) -> Refused:
    return refused(f"The model gave {what} with a number that is not finite", status=500)


def _form(value: object) -> str:
    shape: list[str] = []
    while type(value) in _LISTS:
        values: Sequence[Any] = value  # type: ignore[assignment]  # a list or a tuple
        shape.append(str(len(values)))
        value = values[0] if values else 0.0
    if shape and isinstance(value, Real):
        return f"of shape ({', '.join(shape)}); return one row for each input"
    return "text" if isinstance(value, str) else f"{type(value).__name__}"
