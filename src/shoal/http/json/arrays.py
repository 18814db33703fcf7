"""Numpy arrays as items, from nested lists or ``.npy`` files, and as results in ``.npy`` files.

`shoal.core.npy` reads such files, and trusts no header.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import core_schema

from shoal.batching.handlers.annotations import record_fields
from shoal.batching.handlers.array_types import ArrayType, arrays_in, is_array, is_number
from shoal.core import npy
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.http.requests.exchange import Exchange

NPY: Final = npy.NPY.encode()

_Part: TypeAlias = "dict[str, Any] | list[Any] | str | None"
_RECORDS: Final = frozenset({"model", "dataclass", "typed-dict"})
# Keys of a schema whose values are the user's, even if these look like a schema.
_NO_SCHEMAS: Final = frozenset({"metadata", "serialization", "default"})


def as_npy(value: Any) -> bytes | None:
    """Returns a ``.npy`` file with an array or a numpy scalar; None for other values."""
    if not any(kind.__module__ == "numpy" for kind in type(value).__mro__):
        return None
    np: Any = importlib.import_module("numpy")  # installed: the value is its object
    dtype, form = value.dtype, np.lib.format
    # Objects would be pickled. A mask, and a dtype of another package, would be lost.
    if dtype.hasobject or hasattr(value, "mask"):
        return None
    if form.descr_to_dtype(form.dtype_to_descr(dtype)) != dtype:
        return None
    return npy.npy_of(np.asarray(value))


def read_npy(_exchange: Exchange, body: bytes) -> Any:
    """Reads a body without content coding; raises `Refused` if it is malformed."""
    try:
        array = npy.array_of(body)
        if not is_number(array.dtype):
            raise ValueError(f"it is an array of {array.dtype}, and not of numbers")
    except ValueError as error:
        title = "The body is not an array that the endpoint accepts"
        detail = " ".join(str(error).split())
        raise Refused(Problem(422, "invalid-item", title, detail)) from None
    return array


def with_arrays(schema: Any, annotation: Any) -> Any:
    """Returns a copy of pydantic's schema that makes arrays of nested lists."""
    # Pydantic's own schema of an array has no shape and no dtype, and takes no lists.
    return _changed(schema, arrays_in(annotation))


def _changed(part: _Part, arrays: Iterator[Any]) -> Any:
    """Takes from `arrays` in the order in which the annotation has its array types."""
    if isinstance(part, list):
        return [_changed(one, arrays) for one in part]
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "is-instance" and is_array(part["cls"]):
        make = ArrayType(next(arrays, part["cls"])).of
        return core_schema.no_info_plain_validator_function(make)
    if kind in _RECORDS:
        return _of_record(part, record_fields(part.get("cls")))
    return {k: one if k in _NO_SCHEMAS else _changed(one, arrays) for k, one in part.items()}


def _of_record(part: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    kind, members = part["type"], part.get("fields")
    if kind == "dataclass-args":
        listed: list[Any] = members or []
        made = [_changed(one, arrays_in(fields.get(one["name"]))) for one in listed]
        return {**part, "fields": made}
    if kind in ("model-fields", "typed-dict"):
        named: dict[str, Any] = members or {}
        of_names = {n: _changed(one, arrays_in(fields.get(n))) for n, one in named.items()}
        return {**part, "fields": of_names}
    if "schema" not in part:
        return part
    inner = part["schema"]
    if part.get("root_model"):
        return {**part, "schema": _changed(inner, arrays_in(fields["root"]))}
    return {**part, "schema": _of_record(inner, fields)}
