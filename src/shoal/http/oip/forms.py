"""The forms of tensors, from the annotations of a model's items and results."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from typing_extensions import is_typeddict

from shoal.batching.handlers.annotations import bare, is_unannotated, record_fields
from shoal.batching.handlers.array_types import is_array, unmarked
from shoal.http.oip.tensor import BYTES, DATATYPES

# The datatype in metadata if an annotation allows several.
ANY: Final = "FP32"

_BY_TYPE: Final = ((bool, "BOOL"), (int, "INT64"), (float, "FP64"), (str, BYTES), (bytes, BYTES))
# By the kinds of numpy; the number of bits follows.
_NUMBERS: Final = {"i": "INT", "u": "UINT", "f": "FP"}


class TensorForm(NamedTuple):
    # None if there may be several.
    datatype: str | None = None
    # With -1 for unknown sizes; None if the rank is unknown.
    dimensions: tuple[int, ...] | None = None

    def metadata(self, name: str) -> dict[str, Any]:
        dimensions = (-1,) if self.dimensions is None else self.dimensions
        return {"name": name, "datatype": self.datatype or ANY, "shape": [-1, *dimensions]}


def form_of(annotation: Any) -> TensorForm:
    annotation = bare(annotation)
    if is_unannotated(annotation):
        return TensorForm()
    if is_array(annotation):
        return _of_array(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _common([form_of(type(value)) for value in arguments])
    if origin in (Union, UnionType):
        return _common([form_of(one) for one in arguments if one is not type(None)])
    if origin is tuple and arguments and Ellipsis not in arguments:
        return _within(_common([form_of(one) for one in arguments]), len(arguments))
    kind = origin or annotation
    if not isinstance(kind, type):
        return TensorForm()
    for base, datatype in _BY_TYPE:
        if issubclass(kind, base):
            return TensorForm(datatype, ())
    if issubclass(kind, Sequence):
        return _within(form_of(arguments[0]) if arguments else TensorForm(None, None), -1)
    if kind.__module__ == "numpy" and not arguments:
        return TensorForm(_datatype_of(kind), ())
    return TensorForm()


def fields_of(annotation: Any) -> dict[str, Any]:
    """Returns the types of a record's fields; empty for other types."""
    return {name: unmarked(one) for name, one in record_fields(bare(annotation)).items()}


def is_mapping(annotation: Any) -> bool:
    kind: Any = get_origin(bare(annotation)) or bare(annotation)
    return not is_typeddict(kind) and isinstance(kind, type) and issubclass(kind, Mapping)


def datatype_of_dtype(dtype: Any) -> str | None:
    if dtype.kind in "OSU":
        return BYTES
    if dtype.name == "bfloat16":  # of the package ml_dtypes
        return "BF16"
    if dtype.kind == "b":
        return "BOOL"
    name = f"{_NUMBERS.get(dtype.kind, '')}{8 * dtype.itemsize}"
    return name if name in DATATYPES else None


def _datatype_of(scalar: Any) -> str | None:
    try:
        return datatype_of_dtype(importlib.import_module("numpy").dtype(scalar))
    except TypeError:
        return None


def _of_array(annotation: Any) -> TensorForm:
    shape, *rest = get_args(annotation) or (Any,)
    datatype = None
    for dtype in rest:
        for scalar in get_args(dtype):
            datatype = _datatype_of(scalar) if isinstance(scalar, type) else None
    sizes = get_args(shape)
    if get_origin(shape) is not tuple or Ellipsis in sizes:
        return TensorForm(datatype, None)
    return TensorForm(datatype, tuple(_size_of(size) for size in sizes))


def _size_of(size: Any) -> int:
    values = get_args(size) if get_origin(size) is Literal else ()
    return values[0] if len(values) == 1 and isinstance(values[0], int) else -1


def _within(element: TensorForm, size: int) -> TensorForm:
    inner = element.dimensions
    return TensorForm(element.datatype, None if inner is None else (size, *inner))


def _common(forms: list[TensorForm]) -> TensorForm:
    return forms[0] if forms and forms.count(forms[0]) == len(forms) else TensorForm()
