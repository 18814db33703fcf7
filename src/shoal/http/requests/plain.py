"""Converts values that the JSON and MessagePack libraries can't write into values that they can.

orjson refuses a whole result for one text with half of a surrogate pair, one integer beyond 64
bits, or one key of another type. It writes numpy's NaT as a time of 1677 or 1970, or as invalid
JSON. ormsgpack writes the bytes of an array as if they had the machine's order. Such values are
replaced here; all others are left to the libraries, so they are written as always.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import orjson
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Nearly all results are these, and need no closer look.
ALWAYS_JSON: Final = frozenset({dict, list, tuple, str, int, float, bool, NoneType})
# What orjson writes by itself; the rest is for `encoded`.
PLAIN: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
# Types that both libraries write, whatever the value.
_ALWAYS_PLAIN: Final = frozenset({float, bool, type(None)})
# The UTF-8 and the escape of characters at which `str.splitlines` splits.
_LINE_ENDS: Final = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**64 - 1
# Memoryviews of these formats hold bytes.
_BYTE_FORMATS: Final = frozenset("Bbc")
# An attribute of pydantic's own dataclasses and models.
_SERIALIZER: Final = "__pydantic_serializer__"
_LARGE_ARRAY: Final = 1024  # bytes


def encoded(value: Any) -> bytes:
    """Writes a result as JSON; raises TypeError if pydantic can't serialize it either."""
    # Integers may have any size. Floats that are not finite, and NaT, become null; half of a
    # surrogate pair becomes U+FFFD.
    try:
        return orjson.dumps(value, None, PLAIN)
    except orjson.JSONEncodeError:
        return _encoded_with_others(value)


def _encoded_with_others(value: Any) -> bytes:
    # The first call collects the other values without calling Python code for each.
    others: list[Any] = []
    option = PLAIN
    try:
        orjson.dumps(value, default=others.append, option=option)
        if _are_numbers(others):
            option |= orjson.OPT_SERIALIZE_NUMPY
        elif not any(hasattr(kind, _SERIALIZER) for kind in set(map(type, others))):
            option = orjson.OPT_NON_STR_KEYS
        return orjson.dumps(value, default=_jsonable, option=option)
    except orjson.JSONEncodeError as error:
        try:
            return orjson.dumps(_repaired(value), default=_jsonable, option=orjson.OPT_NON_STR_KEYS)
        except (RecursionError, ValueError):  # it contains itself, or an integer of 5,000 digits
            raise error from None


def one_line_json(text: bytes) -> bytes:
    """Escapes NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR, where `str.splitlines` splits."""
    if not text.isascii():
        for separator, escape in _LINE_ENDS:
            text = text.replace(separator, escape)
    return text


def whole_text(text: str) -> str:
    """Returns a text with U+FFFD for each half of a surrogate pair."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def packable(value: Any) -> Any:
    """Returns a value that ormsgpack writes correctly; bytes stay bytes."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _ALWAYS_PLAIN or kind is int or kind is bytes:
        return value
    if _is_of_numpy(kind):
        return _packable_of_numpy(value)
    if kind in (tuple, set, frozenset) or isinstance(value, list):
        elements: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        if set(map(type, elements)) <= _ALWAYS_PLAIN:
            return elements
        value = elements
    if (built := _rebuilt(value, packable)) is not None:
        return built
    if kind is memoryview:
        return of_memoryview(value)
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return packable(dump(by_alias=True))
    return value if kind is bytearray else packable(from_json(encoded(value)))


def _packable_of_numpy(value: Any) -> Any:
    dtype = value.dtype
    if _is_plain_number(value):
        if not value.ndim:
            return value[()] if hasattr(value, "__setitem__") else value
        np: Any = importlib.import_module("numpy")
        return np.ascontiguousarray(value, dtype.newbyteorder("="))
    if dtype.names:
        return [packable(one) for one in _of_structure(value)]
    if dtype.kind in "OSUV" and dtype.isbuiltin != 2:
        return packable(value.tolist())
    return from_json(encoded(value))


def _are_numbers(values: list[Any]) -> bool:
    """Returns whether all values are numpy's numbers, or arrays of numbers."""
    others = {kind for kind in set(map(type, values)) if not _is_number(kind)}
    return not others or (
        all(map(_is_of_numpy, others))
        and all(
            dtype.kind in "biuf" and dtype.isnative
            for dtype in {one.dtype for one in values if type(one) in others}
        )
    )


@lru_cache(256)
def _is_number(kind: Any) -> bool:
    return kind.__module__ == "numpy" and _form_of(kind) not in (_of_any, _of_numpy)


def _jsonable(value: Any) -> Any:
    """Raises TypeError if JSON can't represent the value."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    return _form_of(kind)(value)


@lru_cache(256)
def _form_of(kind: Any) -> Callable[[Any], Any]:
    """Returns the converter for a type; cached, since a result may have many values."""
    responses: Any = sys.modules.get("starlette.responses")  # without it there are no responses
    if responses is not None and issubclass(kind, responses.Response):
        return _refuse_response
    if not _is_of_numpy(kind):
        return _attributes if dataclasses.is_dataclass(kind) else _of_any
    np: Any = importlib.import_module("numpy")
    if issubclass(kind, (np.float16, np.float32)):
        return _fragment  # as short as a float of its size can be
    if issubclass(kind, (np.bool_, np.integer, np.float64)) and kind is not np.timedelta64:
        return cast("Callable[[Any], Any]", kind.item)
    return _of_numpy


def _refuse_response(value: Any) -> NoReturn:
    raise TypeError(
        f"a {type(value).__name__} can only be the one result of a call by plain HTTP; give this "
        "client the content, and to stream, write the handler as a generator"
    )


def _of_any(value: Any) -> Any:
    if isinstance(value, memoryview):
        elements: Any = of_memoryview(value)  # pyright: ignore[reportUnknownArgumentType]
        return _jsonable(elements) if isinstance(elements, bytes) else elements
    as_list = getattr(value, "tolist", None)
    if as_list is not None:  # an array, or a scalar, of another library
        return as_list()
    try:
        return to_jsonable_python(value, fallback=_within_a_model)
    except UnicodeDecodeError as error:
        raise TypeError(f"bytes that are not UTF-8 can't be written as JSON: {error}") from error
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from error


def _within_a_model(value: Any) -> Any:
    """Converts a part of a model that pydantic can't, such as an array."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
    return from_json(encoded(value))


def _of_numpy(value: Any) -> Any:
    dtype = value.dtype
    if dtype.names:
        return _of_structure(value)
    if dtype.kind in "mM":
        return _of_times(value)
    if not value.ndim:
        return _of_scalar(value)
    if not _is_plain_number(value):
        return value.tolist()
    np: Any = importlib.import_module("numpy")
    return _fragment(np.ascontiguousarray(value, dtype.newbyteorder("=")))


def _of_scalar(scalar: Any) -> Any:
    if hasattr(scalar, "__setitem__"):  # an array of no dimensions
        return scalar[()]
    made = scalar.item()
    if type(made) is not type(scalar):
        return made
    # A number of more than 64 bits, for which Python has no type.
    return complex(made) if made.dtype.kind == "c" else float(made)


def _of_times(value: Any) -> Any:
    """Returns times of Python, None for NaT; raises TypeError for durations of months and years."""
    np: Any = importlib.import_module("numpy")
    if value.dtype.kind == "m":
        unit = np.datetime_data(value.dtype)[0]
        if unit in ("Y", "M"):
            raise TypeError(f"a {value.dtype} can't be written as JSON; convert it to days")
        return value.tolist() if unit == "generic" else value.astype("m8[us]").tolist()
    years = value.astype("M8[Y]")
    is_far = (years < np.datetime64("0001")) | (years > np.datetime64("9999"))
    return value.astype(str if is_far.any() else "M8[us]").tolist()


def _of_structure(value: Any) -> list[Any]:
    if value.ndim:
        return [_of_structure(one) for one in value]
    return [value[name] for name in value.dtype.names]


def _fragment(value: Any) -> Any:
    return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@lru_cache(256)
def _is_of_numpy(kind: Any) -> bool:
    return any(base.__module__ == "numpy" for base in kind.__mro__) and hasattr(kind, "dtype")


def _is_plain_number(value: Any) -> bool:
    """Returns whether both libraries can write the numbers of an array or scalar."""
    dtype = value.dtype
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and not hasattr(value, "mask")


def _repaired(value: Any) -> Any:
    """Returns a value without the parts that orjson refuses."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _ALWAYS_PLAIN:
        return value
    if isinstance(value, int) and not isinstance(value, Enum):
        return value if _LOWEST <= value <= _HIGHEST else orjson.Fragment(b"%d" % value)
    if (built := _rebuilt(value, _repaired)) is not None:
        return built
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return _repaired(_jsonable(value))
    return value


def _rebuilt(value: Any, convert: Callable[[Any], Any]) -> Any:
    # Returns None for other values than texts, containers and records.
    if isinstance(value, Enum):
        return convert(value.value)
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        mapping: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {_key(key): convert(one) for key, one in mapping.items()}
    if type(value) is tuple or isinstance(value, list):  # pyright: ignore[reportUnknownArgumentType]
        return [convert(one) for one in cast("list[Any]", value)]
    if _is_record(value):
        return {name: convert(one) for name, one in _attributes(value).items()}
    return None


def _key(key: Any) -> Any:
    if isinstance(key, Enum):
        return _key(key.value)
    if isinstance(key, str):
        return whole_text(key)
    kind: Any = type(key)  # pyright: ignore[reportUnknownVariableType]
    if _is_of_numpy(kind):
        return str(key) if key.dtype.kind in "mM" else _key(key.item())
    if isinstance(key, int) and not _LOWEST <= key <= _HIGHEST:
        return str(key)
    return key


def is_large_array(value: Any) -> bool:
    """Returns whether a value is a numpy array that costs more to write than to send."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    return (
        (kind.__name__, kind.__module__) == ("ndarray", "numpy")
        and value.nbytes >= _LARGE_ARRAY
        and _is_plain_number(value)
    )


def of_memoryview(view: memoryview) -> Any:
    """Returns bytes, or nested lists of other elements."""
    if view.format in _BYTE_FORMATS and view.ndim == 1:
        return bytes(view)
    try:
        return view.tolist()
    except NotImplementedError as error:
        raise TypeError(f"a memoryview can't be written: {error}") from None


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _attributes(value: Any) -> Mapping[str, Any]:
    """Returns the attributes of a dataclass that both libraries write, by pydantic's aliases."""
    serializer: Any = getattr(value, _SERIALIZER, None)
    if serializer is not None:
        return cast("dict[str, Any]", serializer.to_python(value, by_alias=True))
    attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
    if attributes is None:
        attributes = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return {name: one for name, one in attributes.items() if not name.startswith("_")}
