"""Arrays as ``.npy`` files, and back, for the server and its client.

Unlike `numpy.load`, this does not trust a file: an array of objects would be unpickled, an archive
has other contents than an array, and a header may declare a shape for which memory would be
allocated before the missing data is noticed.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from typing import Any, Final

NPY: Final = "application/x-npy"
"""The media type of a ``.npy`` file."""


def npy_of(array: Any) -> bytes:
    """Raises a `ValueError` for an array of objects."""
    file = io.BytesIO()
    _numpy().lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def array_of(body: bytes) -> Any:
    """Returns a writable array; raises a `ValueError` for other bytes or an array of objects."""
    np = _numpy()
    form = np.lib.format
    file = io.BytesIO(body)
    version = form.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format is not supported; send 1.0 or 2.0")
    read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd header of the other side must not warn here
            shape, in_columns, dtype = read(file)
    except Exception:  # it is parsed as a Python literal, which can raise many errors
        raise ValueError("its header can't be read") from None
    # Numpy takes True for a dimension here, but not where the array is made.
    if any(type(one) is not int for one in shape):
        raise ValueError("the shape in its header does not consist of integers")
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(body) - file.tell():
        raise ValueError("its header does not match its data, or it contains objects")
    flat = np.frombuffer(body[file.tell() :], dtype=dtype)
    return flat.reshape(shape, order="F" if in_columns else "C").copy()


def _numpy() -> Any:
    return importlib.import_module("numpy")
