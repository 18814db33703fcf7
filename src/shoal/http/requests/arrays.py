"""Items that are numpy arrays: from nested lists in JSON, or from the bytes of a ``.npy`` file.

Neither is trusted with what it says of itself: an array of objects would be unpickled, and a header
may promise a shape for which memory would be taken before the data is missed.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from typing import Any, Final, get_args, get_origin

NPY: Final = b"application/x-npy"
"""The media type of a ``.npy`` file."""

# Truth values, whole numbers with and without a sign, floats, complex numbers.
_KINDS: Final = "biufc"


def is_array(annotation: Any) -> bool:
    """Says whether an annotation is ``numpy.ndarray``, or one of ``numpy.typing.NDArray``."""
    kind = get_origin(annotation) or annotation
    return (getattr(kind, "__module__", ""), getattr(kind, "__name__", "")) == ("numpy", "ndarray")


class Arrays:
    """Makes arrays of one type.

    Args:
        annotation: The type, which may say what an array is made of.
    """

    def __init__(self, annotation: Any) -> None:
        self._np: Any = importlib.import_module("numpy")  # it is there: the annotation is of it
        self._dtype = self._dtype_of(annotation)

    def of_lists(self, value: Any) -> Any:
        """Makes an array of nested lists.

        Raises:
            ValueError: It is none of this type.
        """
        return self._checked(self._np.asarray(value))

    def of_npy(self, body: bytes) -> Any:
        """Makes an array of the bytes of a ``.npy`` file.

        Raises:
            ValueError: It is none of this type.
        """
        form = self._np.lib.format
        file = io.BytesIO(body)
        version = form.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"it is of version {version} of the format; send 1.0 or 2.0")
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is odd about a header is its client's fault
                shape, in_columns, dtype = read(file)
        except Exception:  # it is read as a Python literal, which goes wrong in many ways
            raise ValueError("its header can't be read") from None
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(body) - file.tell():
            raise ValueError("its header does not fit its data, or it holds objects")
        flat = self._np.frombuffer(body[file.tell() :], dtype=dtype)
        # A copy, since handlers may write into what they are given.
        return self._checked(flat.reshape(shape, order="F" if in_columns else "C").copy())

    def _checked(self, array: Any) -> Any:
        if array.dtype.kind not in _KINDS:
            raise ValueError("it is not made of numbers alone")
        if self._dtype is None or array.dtype == self._dtype:
            return array
        if not array.size:
            return array.astype(self._dtype)
        if array.dtype.kind in "iu" and self._dtype.kind in "iu":
            # Numpy would take 300 for 44 where eight bits are wanted.
            bounds = self._np.iinfo(self._dtype)
            if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
                raise ValueError(f"it has a number that does not fit into {self._dtype}")
            return array.astype(self._dtype)
        try:
            return array.astype(self._dtype, casting="same_kind")
        except TypeError as error:
            raise ValueError(str(error)) from None

    def _dtype_of(self, annotation: Any) -> Any:
        for part in get_args(annotation)[1:]:
            for scalar in get_args(part):
                if isinstance(scalar, type) and issubclass(scalar, self._np.generic):
                    dtype = self._np.dtype(scalar)
                    return dtype if dtype.kind in _KINDS else None
        return None
