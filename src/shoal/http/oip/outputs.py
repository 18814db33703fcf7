"""Makes the response to a request: tensors of the results of its rows, joined.

A result is a number, text, bytes, an array, or nested lists of them. A mapping, a model, a
dataclass or a `TypedDict` has several outputs by name; other results are the output ``output``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import BaseModel
from pydantic_core import from_json

from shoal.batching.handlers.annotations import is_unannotated
from shoal.http.oip.forms import TensorForm, datatype_of_dtype, fields_of, form_of, is_mapping
from shoal.http.oip.tensor import BYTES, DATATYPES, not_fitting
from shoal.http.requests.plain import encoded, whole_text

if TYPE_CHECKING:
    from shoal.http.oip.request import RequestHead

# The name of the output of a model with unnamed results.
OUTPUT: Final = "output"

_TEXTS: Final = frozenset({str, bytes})
_NUMBERS: Final = frozenset({int, float, bool})
_ANY: Final = TensorForm()
_NONE: Final[Mapping[str, TensorForm]] = {}
_LISTS: Final = frozenset({list, tuple})
_UNNAMED: Final = _TEXTS | _NUMBERS | _LISTS
_FLOAT: Final = {float}
_INT64: Final = DATATYPES["INT64"]


class ModelOutputs:
    def __init__(self, signature: Signature) -> None:
        result = signature.return_annotation
        if result is Parameter.empty or is_unannotated(result) or is_mapping(result):
            self._forms: dict[str, TensorForm] | None = None
        else:
            known = fields_of(result) or {OUTPUT: result}
            self._forms = {name: form_of(annotation) for name, annotation in known.items()}

    def metadata(self) -> list[dict[str, Any]]:
        return [form.metadata(name) for name, form in (self._forms or {}).items()]

    def check(self, wanted: Mapping[str, Any]) -> None:
        """Refuses a request for an output that the model does not have."""
        if self._forms is not None:
            _check_names(wanted, self._forms)

    def body(
        self, request: RequestHead, results: list[Any], response: dict[str, Any]
    ) -> tuple[int | None, bytes]:
        """Returns the length of the JSON, if binary data follows it, and the body."""
        columns = _columns(results)
        forms = self._forms or _NONE
        wanted = request.outputs
        if wanted is None:
            wanted = dict.fromkeys(columns, request.is_binary)
        else:
            _check_names(wanted, columns)
        outputs: list[dict[str, Any]] = []
        response["outputs"] = outputs
        parts: list[bytes] = []
        for name, is_binary in wanted.items():
            datatype, shape, elements = _joined(columns[name], forms.get(name, _ANY))
            output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
            outputs.append(output)
            if is_binary:
                data = _binary(datatype, elements)
                parts.append(data)
                output["parameters"] = {"binary_data_size": len(data)}
            else:
                output["data"] = _json(name, datatype, elements)
        head = orjson.dumps(response)
        return (len(head), b"".join([head, *parts])) if parts else (None, head)


def _binary(datatype: str, elements: Any) -> bytes:
    if elements.__class__ is not list:  # an array
        order = elements.dtype.newbyteorder("<")
        data: bytes = elements.astype(order, copy=False).tobytes()
        return data
    flat: list[Any] = elements
    if datatype == BYTES:
        texts = [whole_text(one).encode() if isinstance(one, str) else one for one in flat]
        return b"".join(chain.from_iterable([(len(t).to_bytes(4, "little"), t) for t in texts]))
    return DATATYPES[datatype].written(flat)


def _json(name: str, datatype: str, elements: Any) -> Any:
    if elements.__class__ is not list:  # an array
        return elements.ravel().tolist()
    if datatype != BYTES:
        return elements
    flat: list[Any] = elements
    try:
        return [one.decode() if isinstance(one, bytes) else whole_text(one) for one in flat]
    except UnicodeDecodeError:
        detail = f"The output {name!r} is no UTF-8; ask for it as binary data."
        raise not_fitting(detail) from None


def _check_names(wanted: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if unknown := wanted.keys() - known.keys():
        names = ", ".join(known) or "none"
        raise not_fitting(f"The model has the outputs {names}; there is no {min(unknown)!r}.")


def _columns(results: list[Any]) -> dict[str, list[Any]]:
    if type(results[0]) in _UNNAMED and (
        len(results) == 1 or _UNNAMED.issuperset(map(type, results))
    ):
        return {OUTPUT: results}
    rows = [_named(result) for result in results]
    first = rows[0]
    if first is None:
        if any(row is not None for row in rows):
            raise TypeError("some results have names, and others have none")
        return {OUTPUT: results}
    if any(row is None or row.keys() != first.keys() for row in rows):
        raise TypeError("the results of a request have different names")
    if any(type(name) is not str for name in first):
        raise TypeError("the names of results must be text")
    return {whole_text(name): [row[name] for row in rows if row is not None] for name in first}


def _named(result: Any) -> Mapping[Any, Any] | None:
    if isinstance(result, Mapping):
        names: Mapping[Any, Any] = result  # pyright: ignore[reportUnknownVariableType]
        return names
    if isinstance(result, BaseModel):
        return dict(result)
    if is_dataclass(result) and not isinstance(result, type):
        return {one.name: getattr(result, one.name) for one in fields(result)}
    return None


def _joined(
    values: list[Any], form: TensorForm, *, is_plain: bool = False
) -> tuple[str, list[int], Any]:
    """Returns the datatype, the shape and the elements (a list or an array) of joined rows."""
    # `is_plain` says that the values are JSON's own.
    shape = [len(values)]
    flat: Any = values
    kinds = set(map(type, flat))
    while kinds and kinds <= _LISTS:
        sizes = set(map(len, flat))
        if len(sizes) > 1:
            raise TypeError(f"lists of {min(sizes)} and {max(sizes)} elements are no tensor")
        shape += sizes
        flat = flat[0] if len(flat) == 1 else list(chain.from_iterable(flat))
        kinds = set(map(type, flat))
    if kinds == _FLOAT:
        return "FP64", shape, list(flat)
    if kinds <= _TEXTS:
        return BYTES if kinds else form.datatype or "FP64", shape, list(flat)
    if kinds <= _NUMBERS:
        return _of_numbers(flat, kinds, shape, form)
    if hasattr(values[0], "__array__"):
        return _of_arrays(values)
    if is_plain:
        raise TypeError(f"a result is no tensor: {', '.join(sorted(k.__name__ for k in kinds))}")
    # Other types, such as numpy's numbers in a list, become the values that JSON would have.
    return _joined(from_json(encoded(values)), form, is_plain=True)


def _of_numbers(
    flat: Sequence[Any], kinds: set[type], shape: list[int], form: TensorForm
) -> tuple[str, list[int], list[Any]]:
    if kinds == {bool} and form.datatype in (None, "BOOL"):
        return "BOOL", shape, list(flat)
    if float in kinds or form.datatype == "FP64":
        return "FP64", shape, list(map(float, flat))
    low, high = min(flat), max(flat)
    if low >= _INT64.low and high <= _INT64.high:
        return "INT64", shape, list(map(int, flat))
    if low >= 0 and high <= DATATYPES["UINT64"].high:
        return "UINT64", shape, list(map(int, flat))
    raise TypeError("an integer has more than 64 bits")


def _of_arrays(values: list[Any]) -> tuple[str, list[int], Any]:
    np: Any = importlib.import_module("numpy")  # installed: there is an array
    if any(np.ma.is_masked(value) for value in values):
        raise TypeError("a masked array is no tensor; give its masked elements a value")
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
        return BYTES, list(array.shape), flat
    return datatype, list(array.shape), array
