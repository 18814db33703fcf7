"""Makes the answer to a request: tensors of the results of its rows, joined.

A result is a number, text, bytes, an array, or nested lists of them. A mapping, a model, a
dataclass or a `TypedDict` has several outputs by name; other results are the output ``output``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson
from pydantic import BaseModel

from shoal.batching.handlers.list_types import is_unannotated
from shoal.http.oip.datatypes import BYTES, DATATYPES
from shoal.http.oip.forms import Form, datatype_of_dtype, fields_of, form_of, is_mapping
from shoal.http.oip.tensor import not_fitting
from shoal.http.requests.payload import encoded
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.http.oip.tensor_request import TensorRequest

OUTPUT: Final = "output"
"""The name of the only output of a model whose results have no names."""

_TEXTS: Final = frozenset({str, bytes})
_NUMBERS: Final = frozenset({int, float, bool})
_INT64: Final = DATATYPES["INT64"]


class Outputs:
    """Makes the answers of one model.

    Args:
        signature: The signature of a call with one item.
    """

    def __init__(self, signature: Signature) -> None:
        result = signature.return_annotation
        if result is Parameter.empty or is_unannotated(result) or is_mapping(result):
            self._forms: dict[str, Form] | None = None
        else:
            known = fields_of(result)
            known = {OUTPUT: result} if known is None else known
            self._forms = {name: form_of(annotation) for name, annotation in known.items()}

    def metadata(self) -> list[dict[str, Any]]:
        """Returns what the model's metadata says of its outputs; nothing if that is not known."""
        return [form.metadata(name) for name, form in (self._forms or {}).items()]

    def check(self, request: TensorRequest) -> None:
        """Checks that a request wants no output that the model does not have.

        Raises:
            Refused: It does.
        """
        if self._forms is not None and request.outputs is not None:
            _check_names(request.outputs, self._forms)

    def body(
        self, request: TensorRequest, results: list[Any], answer: dict[str, Any]
    ) -> tuple[int | None, bytes]:
        """Returns the body of an answer.

        Args:
            request: The request.
            results: The result of each row.
            answer: What the answer has besides the outputs.

        Returns:
            The length of the JSON, if binary data follows it; and the body.

        Raises:
            Refused: An output is wanted that is not there, or can't be in JSON.
            TypeError: The results can't be written as tensors.
        """
        columns = _columns(results)
        wanted = request.outputs
        if wanted is None:
            wanted = dict.fromkeys(columns, request.is_binary)
        else:
            _check_names(wanted, columns)
        outputs: list[dict[str, Any]] = []
        parts: list[bytes] = []
        for name, is_binary in wanted.items():
            form = (self._forms or {}).get(name, Form())
            tensor = _joined(columns[name], form)
            output = {"name": name, "datatype": tensor.datatype, "shape": tensor.shape}
            if is_binary:
                data = tensor.binary()
                parts.append(data)
                output["parameters"] = {"binary_data_size": len(data)}
            else:
                output["data"] = tensor.json(name)
            outputs.append(output)
        head = orjson.dumps({**answer, "outputs": outputs})
        return (len(head), b"".join([head, *parts])) if parts else (None, head)


class _Joined(NamedTuple):
    """An output.

    Attributes:
        datatype: The name of its datatype.
        shape: Its shape.
        flat: Its elements, in row-major order; None if it is an array.
        array: The array; None if it is not one.
    """

    datatype: str
    shape: list[int]
    flat: list[Any] | None
    array: Any = None

    def binary(self) -> bytes:
        if self.flat is None:
            order = self.array.dtype.newbyteorder("<")
            data: bytes = self.array.astype(order, copy=False).tobytes()
            return data
        if self.datatype == BYTES:
            texts = [one.encode() if isinstance(one, str) else one for one in self.flat]
            return b"".join(chain.from_iterable([(len(t).to_bytes(4, "little"), t) for t in texts]))
        return DATATYPES[self.datatype].written(self.flat)

    def json(self, name: str) -> list[Any]:
        if self.flat is None:
            flat: list[Any] = self.array.ravel().tolist()
            return flat
        if self.datatype != BYTES:
            return self.flat
        try:
            return [one.decode() if isinstance(one, bytes) else one for one in self.flat]
        except UnicodeDecodeError:
            detail = f"The output {name!r} is no UTF-8; ask for it as binary data."
            raise Refused(not_fitting(detail)) from None


def _check_names(wanted: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if unknown := wanted.keys() - known.keys():
        names = ", ".join(known) or "none"
        raise Refused(
            not_fitting(f"The model has the outputs {names}; there is no {min(unknown)!r}.")
        )


def _columns(results: list[Any]) -> dict[str, list[Any]]:
    """Returns the results of all rows, by the name of the output.

    Raises:
        TypeError: They do not have the same names.
    """
    rows = [_named(result) for result in results]
    first = rows[0]
    if first is None:
        if any(row is not None for row in rows):
            raise TypeError("some results have names, and others have none")
        return {OUTPUT: results}
    if any(row is None or row.keys() != first.keys() for row in rows):
        raise TypeError("the results of a request have different names")
    if not all(isinstance(name, str) for name in first):
        raise TypeError("the names of results must be text")
    return {name: [row[name] for row in rows if row is not None] for name in first}


def _named(result: Any) -> Mapping[str, Any] | None:
    if isinstance(result, Mapping):
        return cast("Mapping[str, Any]", result)
    if isinstance(result, BaseModel):
        return dict(result)
    if is_dataclass(result) and not isinstance(result, type):
        return {one.name: getattr(result, one.name) for one in fields(result)}
    return None


def _joined(values: list[Any], form: Form) -> _Joined:
    """Returns the tensor whose rows are these values.

    Raises:
        TypeError: They are no rows of one tensor.
    """
    if hasattr(values[0], "__array__"):
        return _of_arrays(values)
    shape = [len(values)]
    flat: Any = values
    kinds = set(map(type, flat))
    while kinds and kinds <= {list, tuple}:
        sizes = set(map(len, flat))
        if len(sizes) > 1:
            raise TypeError(f"results of different lengths are no tensor: {min(sizes)}, {max(sizes)}")
        shape += sizes
        flat = list(chain.from_iterable(flat))
        kinds = set(map(type, flat))
    if not kinds <= _TEXTS and not kinds <= _NUMBERS:
        return _joined(_plain(values), form)
    return _of_values(flat, kinds, shape, form)


def _of_values(flat: list[Any], kinds: set[type], shape: list[int], form: Form) -> _Joined:
    if not kinds:
        return _Joined(form.datatype or "FP64", shape, flat)
    if kinds <= _TEXTS:
        return _Joined(BYTES, shape, flat)
    if kinds == {bool} and form.datatype in (None, "BOOL"):
        return _Joined("BOOL", shape, flat)
    if float in kinds or form.datatype == "FP64":
        return _Joined("FP64", shape, list(map(float, flat)))
    low, high = min(flat), max(flat)
    if low >= _INT64.low and high <= _INT64.high:
        return _Joined("INT64", shape, list(map(int, flat)) if bool in kinds else flat)
    if low >= 0 and high <= DATATYPES["UINT64"].high:
        return _Joined("UINT64", shape, flat)
    raise TypeError("an integer has more than 64 bits")


def _of_arrays(values: list[Any]) -> _Joined:
    np: Any = importlib.import_module("numpy")  # installed: there is an array
    try:
        array = np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise TypeError(f"the results are no tensor: {error}") from error
    datatype = datatype_of_dtype(array.dtype)
    if datatype is None:
        raise TypeError(f"the protocol has no datatype for {array.dtype}")
    if datatype == BYTES:
        flat = array.ravel().tolist()
        if not set(map(type, flat)) <= _TEXTS:
            raise TypeError("an array of objects has something else than text or bytes")
        return _Joined(BYTES, list(array.shape), flat)
    return _Joined(datatype, list(array.shape), None, array)


def _plain(values: list[Any]) -> list[Any]:
    """Returns values of other types as those of JSON.

    Raises:
        TypeError: They can't be, or are none of a tensor.
    """
    plain: list[Any] = orjson.loads(encoded(values))
    if plain == values:
        raise TypeError(f"a result is no tensor: {_odd(values)}")
    return plain


def _odd(values: Sequence[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))
