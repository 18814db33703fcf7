"""Numpy arrays as items, from nested lists or the bytes of a ``.npy`` file; and as such a file.

Such files are read by `shoal.core.npy`, which trusts no header.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, get_args, get_origin

from shoal.core import npy

NPY: Final = npy.NPY.encode()
"""The media type of a ``.npy`` file."""

# Booleans, signed and unsigned integers, floats, complex numbers.
_KINDS: Final = "biufc"
_NO_NUMBERS: Final = "it does not consist of numbers only"
_IN_LISTS: Final = frozenset({bool, int, float, list})


def is_array(annotation: Any) -> bool:
    """Returns whether an annotation is ``numpy.ndarray``, or one of ``numpy.typing.NDArray``."""
    kind = get_origin(annotation) or annotation
    return (getattr(kind, "__module__", ""), getattr(kind, "__name__", "")) == ("numpy", "ndarray")


def as_npy(value: Any) -> bytes | None:
    """Returns the bytes of a ``.npy`` file with an array, or a numpy scalar; None for others."""
    if not any(kind.__module__ == "numpy" for kind in type(value).__mro__):
        return None
    np: Any = importlib.import_module("numpy")  # installed: the value is its object
    array = np.asarray(value)
    if array.dtype.hasobject:  # it would be pickled
        return None
    return npy.npy_of(array)


class Arrays:
    """Makes arrays of one type.

    Args:
        annotation: The type, which may have a dtype.
    """

    def __init__(self, annotation: Any) -> None:
        self._np: Any = importlib.import_module("numpy")  # installed: the annotation uses it
        self._dtype = self._dtype_of(annotation)

    def of_lists(self, value: Any) -> Any:
        """Returns an array from nested lists.

        Raises:
            ValueError: They are not an array of this type.
        """
        _check_numbers(value)
        return self._checked(self._np.asarray(value))

    def of_numbers(self, array: Any) -> Any:
        """Returns an array from one of another type.

        Raises:
            ValueError: It can't be converted to this type.
        """
        return self._checked(array)

    def of_npy(self, body: bytes) -> Any:
        """Returns an array from the bytes of a ``.npy`` file.

        Raises:
            ValueError: They are not an array of this type.
        """
        return self._checked(npy.array_of(body))

    def _checked(self, array: Any) -> Any:
        if array.dtype.kind not in _KINDS:
            raise ValueError(_NO_NUMBERS)
        if not array.dtype.isnative:  # much that takes arrays refuses such
            array = array.astype(array.dtype.newbyteorder("="))
        if self._dtype is None or array.dtype == self._dtype:
            return array
        if not array.size and array.dtype.kind != "c":
            return array.astype(self._dtype)
        if array.dtype.kind in "iu" and self._dtype.kind in "iu":
            # Numpy would convert 300 to 44 in eight bits.
            bounds = self._np.iinfo(self._dtype)
            if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
                raise ValueError(f"it has a number that does not fit into {self._dtype}")
            return array.astype(self._dtype)
        try:
            with self._np.errstate(over="raise"):
                return array.astype(self._dtype, casting="same_kind")
        except FloatingPointError:
            raise ValueError(f"it has a number that does not fit into {self._dtype}") from None
        except TypeError as error:
            raise ValueError(str(error)) from None

    def _dtype_of(self, annotation: Any) -> Any:
        for part in get_args(annotation)[1:]:
            for scalar in get_args(part):
                if isinstance(scalar, type) and issubclass(scalar, self._np.generic):
                    dtype = self._np.dtype(scalar)
                    return dtype if dtype.kind in _KINDS else None
        return None


def _check_numbers(value: Any) -> None:
    """Checks that nested lists have nothing in them but numbers.

    Numpy would make each text in an array as long as the longest, before its type can be refused:
    one of a MiB and a thousand short ones would take 4 GiB.

    Raises:
        ValueError: They have something else.
    """
    pending = [[value]]
    while pending:
        one = pending.pop()
        kinds = set(map(type, one))
        if not kinds <= _IN_LISTS:
            raise ValueError(_NO_NUMBERS)
        if list in kinds:
            if len(kinds) > 1:
                raise ValueError("its lists have both numbers and lists in them")
            pending += one
