"""Makes the items of calls from tensors: an item of each row.

==========================================  =====================================================
the item is annotated as                    a row of the tensor becomes
==========================================  =====================================================
``numpy.ndarray``, or an ``NDArray``        an array
nothing, or ``Any``                         a value, or nested lists of them; text is bytes
any other type that pydantic knows          the same, checked against it; a row with one element is
                                            that element, if the type has no dimension
a model, a dataclass or a ``TypedDict``     made of the inputs with the names of its fields
several parameters                          the inputs with their names; those with defaults may be
                                            left out
==========================================  =====================================================

The only input of a model with one parameter may have any name.
"""

from __future__ import annotations

import importlib
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

from pydantic import ValidationError
from starlette.requests import Request

from shoal.batching.handlers.annotations import is_unannotated
from shoal.batching.handlers.array_types import ArrayType, is_array
from shoal.http.json.validation import adapter_of, first_error, keys_of, validator_of
from shoal.http.oip.forms import fields_of, form_of
from shoal.http.oip.tensor import BF16, BYTES, Tensor, malformed, not_fitting, widened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import SchemaValidator

# Each row is queued as an item of its own, which costs about a KiB.
MOST_ROWS: Final = 2**14


class ModelInputs:
    """Makes the items of one model; raises TypeError if they can't be made of tensors."""

    def __init__(self, signature: Signature) -> None:
        parameters = list(signature.parameters.values())
        self._parameters = parameters
        self._record: SchemaValidator | None = None
        fields = fields_of(parameters[0].annotation) if len(parameters) == 1 else {}
        if fields:
            self._record = _validator_of(parameters[0].annotation)
            self._required: set[str] = set()  # pydantic knows them
            keys = keys_of(adapter_of(parameters[0].annotation).core_schema)
            self._annotations = {keys.get(n, [n])[0]: one for n, one in fields.items()}
            self._columns: dict[str, _Values | _ArrayValues] = {
                key: _column_of(one, checks=False)
                for name, one in fields.items()
                for key in keys.get(name, [name])
            }
        else:
            self._required = {p.name for p in parameters if p.default is Parameter.empty}
            self._annotations = {p.name: p.annotation for p in parameters}
            self._columns = {p.name: _column_of(p.annotation) for p in parameters}

    def metadata(self) -> list[dict[str, Any]]:
        return [form_of(one).metadata(name) for name, one in self._annotations.items()]

    def items(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Returns the item of each row; a tuple, in order, if the code has several parameters."""
        if len(tensors) == len(self._parameters) == 1 and self._record is None:
            [column] = self._columns.values()
            _check_rows(tensors[0].shape[0])
            return column.values(tensors[0])
        by_name = {tensor.name: tensor for tensor in tensors}
        self._check_names(by_name)
        if not self._parameters:
            return [()]
        rows = _rows_of(by_name) if by_name else 1
        columns = {name: self._columns[name].values(one) for name, one in by_name.items()}
        if self._record is not None:
            names = list(columns)
            by_row = zip(*columns.values(), strict=True)
            made = [dict(zip(names, row, strict=True)) for row in by_row]
            return _checked(self._record, made, "The request")
        return list(
            zip(*[columns.get(p.name) or [p.default] * rows for p in self._parameters], strict=True)
        )

    def _check_names(self, tensors: Mapping[str, Tensor]) -> None:
        missing = self._required - tensors.keys()
        unknown = tensors.keys() - self._columns.keys()
        if missing or unknown:
            what = f"{min(missing)!r} is missing" if missing else f"there is no {min(unknown)!r}"
            names = ", ".join(self._annotations) or "none"
            raise not_fitting(f"The model has the inputs {names}; {what}.")


class _Values:
    def __init__(self, annotation: Any, *, checks: bool) -> None:
        self._is_scalar = form_of(annotation).dimensions == ()
        checks = checks and not is_unannotated(annotation)
        self._validator = _validator_of(annotation) if checks else None
        self._exact = _exact(annotation)

    def values(self, tensor: Tensor) -> list[Any]:
        if self._exact == (tensor.datatype.element, len(tensor.shape)):
            return tensor.rows
        is_scalar = self._is_scalar and len(tensor.elements) == tensor.shape[0]
        values = tensor.elements if is_scalar else tensor.rows
        if self._validator is None:
            return values
        return _checked(self._validator, values, f"The input {tensor.name!r}")


class _ArrayValues:
    def __init__(self, annotation: Any) -> None:
        self._np: Any = importlib.import_module("numpy")  # installed: the annotation uses it
        self._arrays = ArrayType(annotation)
        # The model's metadata has a dimension besides the number of rows.
        self._needs_dimension = form_of(annotation).dimensions is None
        self._takes_text = form_of(annotation).datatype in (None, BYTES)

    def values(self, tensor: Tensor) -> list[Any]:
        if len(tensor.shape) == 1 and self._needs_dimension:
            sizes = tensor.shape
            detail = (
                f"The input {tensor.name!r} has the shape {sizes}, whose only dimension is the "
                f"number of rows. For one row send the shape {[1, *sizes]}."
            )
            raise not_fitting(detail)
        try:
            array = self._array(tensor).reshape(tensor.shape)
            self._arrays.check_shape(array.shape[1:])
            if tensor.datatype.name != BYTES:
                array = self._arrays.of_dtype(array)
            elif not self._takes_text:
                raise ValueError("it does not consist of numbers only")
        except (ValueError, OverflowError) as error:
            detail = " ".join(str(error).split()).rstrip(".")
            raise not_fitting(f"The input {tensor.name!r} is not accepted: {detail}.") from None
        return [array[row, ...] for row in range(len(array))]

    def _array(self, tensor: Tensor) -> Any:
        np, datatype, data = self._np, tensor.datatype, tensor.data
        if datatype.name == BYTES:
            return np.array(tensor.elements, dtype=object)
        native = np.dtype(datatype.numpy_name).newbyteorder("=")
        if data is None:
            return np.array(tensor.elements, dtype=native)
        if datatype.name == "BOOL":
            return np.frombuffer(data, np.uint8) != 0  # any other byte than 0 is true
        if datatype.name == BF16:
            data = widened(data)
        # A copy, since handlers may write to their items.
        return np.frombuffer(data, datatype.numpy_name).astype(native)


def _column_of(annotation: Any, *, checks: bool = True) -> _Values | _ArrayValues:
    if annotation is Request:
        raise TypeError("its items are whole HTTP requests")
    return _ArrayValues(annotation) if is_array(annotation) else _Values(annotation, checks=checks)


def _exact(annotation: Any) -> tuple[Any, int]:
    """Returns the element type and the rank of the tensors whose rows need no check or change."""
    rank = 1
    while get_origin(annotation) is list:
        [annotation] = get_args(annotation)
        rank += 1
    return annotation, rank


def _validator_of(annotation: Any) -> SchemaValidator:
    # Not the one for JSON: a float in binary data may be infinite, or not a number.
    return validator_of(adapter_of(list[annotation]), is_finite=False)


def _checked(validator: SchemaValidator, values: list[Any], what: str) -> list[Any]:
    try:
        checked: list[Any] = validator.validate_python(values)
    except ValidationError as error:
        where, message = first_error(error)
        raise not_fitting(f"{what} does not fit at row {where}: {message}.") from None
    return checked


def _rows_of(tensors: Mapping[str, Tensor]) -> int:
    counts = {tensor.shape[0] for tensor in tensors.values()}
    if len(counts) > 1:
        sizes = ", ".join(f"{name!r} has {one.shape[0]}" for name, one in tensors.items())
        detail = f"The first dimension, the number of rows, differs among inputs: {sizes}."
        raise malformed(detail)
    [rows] = counts
    _check_rows(rows)
    return rows


def _check_rows(rows: int) -> None:
    if not 1 <= rows <= MOST_ROWS:
        raise malformed(f"A request may have 1 to {MOST_ROWS} rows, but it has {rows}.")
