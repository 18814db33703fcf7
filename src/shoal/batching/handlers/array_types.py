"""Numpy arrays in annotations: the shape and the dtype that an annotation declares.

``np.ndarray[tuple[Literal[4], int], np.dtype[np.float32]]`` declares two dimensions, the first of
size 4, and 32-bit floats. Items are checked before they enter a batch, where an array of another
shape would fail the whole batch.

Numpy is imported only for an annotation that uses it.
"""

from __future__ import annotations

import copy
import importlib
import typing
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeAlias,
    get_args,
    get_origin,
)

from typing_extensions import ReadOnly, Unpack

from shoal.batching.handlers.annotations import bare, choices, record_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from inspect import Signature

# Booleans, signed and unsigned integers, floats, complex numbers.
_KINDS: Final = "biufc"
_NO_NUMBERS: Final = "it does not consist of numbers only"
_IN_LISTS: Final = frozenset({bool, int, float, list})
# Two objects on CPython 3.11.
_UNPACK: Final = (Unpack, typing.Unpack)
_MARKS: Final = (Required, NotRequired, ReadOnly)
# What numbers become where an abstract type is declared; None where they must be of it already.
_CONCRETE: Final = {
    **dict.fromkeys(["generic", "number"]),
    **dict.fromkeys(["integer", "signedinteger"], "int64"),
    **dict.fromkeys(["inexact", "floating"], "float64"),
    "unsignedinteger": "uint64",
    "complexfloating": "complex128",
}

_Size: TypeAlias = frozenset[int] | None
"""The sizes that a dimension may have; None for any."""

_Shape: TypeAlias = tuple[_Size, ...]

Check: TypeAlias = Callable[[Any], Any]
"""Returns a value with its arrays converted, or raises a `ValueError`."""


def is_array(annotation: Any) -> bool:
    annotation = bare(annotation)
    kind = get_origin(annotation) or annotation
    return (getattr(kind, "__module__", ""), getattr(kind, "__name__", "")) == ("numpy", "ndarray")


def arrays_in(annotation: Any) -> Iterator[Any]:
    """Yields the array types in an annotation, from left to right, without those of records."""
    annotation = unmarked(annotation)
    if is_array(annotation):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from arrays_in(part)


def has_arrays(annotation: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Returns whether an annotation has array types, also in the fields of records."""
    annotation = unmarked(annotation)
    if is_array(annotation):
        return True
    kind: Any = get_origin(annotation) or annotation
    if kind is Literal:
        return False
    parts = list(get_args(annotation))
    if isinstance(kind, type) and kind not in seen:
        seen |= {kind}
        parts += record_fields(annotation).values()
    return any(has_arrays(part, seen) for part in parts)


class ArrayType:
    """An array type: it checks arrays, and makes them from nested lists."""

    def __init__(self, annotation: Any) -> None:
        self._np: Any = importlib.import_module("numpy")  # installed: the annotation uses it
        shape, dtypes = (*get_args(bare(annotation)), Any, Any)[:2]
        shapes = [_shape_of(one) for one in choices(shape)]
        self._shapes = [] if None in shapes else [one for one in shapes if one is not None]
        self._scalars = list(self._scalars_in(dtypes))

    def of(self, value: Any) -> Any:
        """Converts an array, or numbers in nested lists; raises a `ValueError` if it can't."""
        is_nested = not hasattr(value, "__array__")
        if is_nested:
            _check_numbers(value)
        array = self._np.asarray(value)
        if is_nested and not is_number(array.dtype):  # of integers beyond 64 bits
            raise ValueError("it has a number that does not fit into 64 bits")
        self.check_shape(array.shape)
        return self.of_dtype(array)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if self._shapes and not any(_fits(shape, one) for one in self._shapes):
            declared = " or ".join(map(_shape_text, self._shapes))
            raise ValueError(f"its shape is {shape}, and it must be {declared}")

    def of_dtype(self, array: Any) -> Any:
        """Converts an array to a declared dtype where each number stays the same."""
        dtype = array.dtype
        if not dtype.isnative and is_number(dtype):  # much that takes arrays refuses such
            array = array.astype(dtype.newbyteorder("="))
        if not self._scalars or any(issubclass(dtype.type, one) for one in self._scalars):
            return array
        if not is_number(dtype):
            raise ValueError(_NO_NUMBERS)
        return _by_first([partial(self._converted, scalar) for scalar in self._scalars], array)

    def _converted(self, scalar: Any, array: Any) -> Any:
        np = self._np
        name = _CONCRETE.get(scalar.__name__, scalar)
        target = None if name is None else np.dtype(name)
        refusal = f"its dtype is {array.dtype}, and it must be {scalar.__name__}"
        if target is None or not is_number(target):
            raise ValueError(refusal)
        if not array.size and array.dtype.kind != "c":
            return array.astype(target)
        if array.dtype.kind in "iu" and target.kind in "iu":
            # Numpy would convert 300 to 44 in eight bits.
            bounds = np.iinfo(target)
            if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
                raise ValueError(f"it has a number that does not fit into {target}")
            return array.astype(target)
        try:
            with np.errstate(over="raise"):
                return array.astype(target, casting="same_kind")
        except FloatingPointError:
            raise ValueError(f"it has a number that does not fit into {target}") from None
        except TypeError:
            raise ValueError(refusal) from None

    def _scalars_in(self, annotation: Any) -> Iterator[Any]:
        """Yields the scalar types that declared dtypes have; none if any dtype is allowed."""
        np = self._np
        for one in choices(annotation):
            if isinstance(one, type) and issubclass(one, np.dtype) and not get_args(one):
                # A class of `numpy.dtypes`.
                yield getattr(one, "type", np.generic)
            for scalar in choices(*get_args(one)) if get_args(one) else ():
                if isinstance(scalar, type) and issubclass(scalar, np.generic):
                    yield np.generic if scalar is np.object_ else scalar


def array_check(signature: Signature) -> Check | None:
    # The check returns the item, with arrays, and nested lists in place of them, converted to the
    # declared types. It raises a `ValueError` that names the parameter.
    parameters = list(signature.parameters.values())
    checks = [_check_of(one.annotation, {}) for one in parameters]
    if not any(checks):
        return None

    def check(item: Any) -> Any:
        values = (item,) if len(parameters) == 1 else item
        made = tuple(
            value if value is p.default else _named(p.name, one, value)
            for p, one, value in zip(parameters, checks, values, strict=True)
        )
        return made[0] if len(parameters) == 1 else made

    return check


def _named(name: str, check: Check | None, value: Any) -> Any:
    try:
        return value if check is None else check(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_of(annotation: Any, known: dict[Any, Check]) -> Check | None:
    # `known` has the checks of the enclosing records, for recursive types.
    annotation = unmarked(annotation)
    if is_array(annotation):
        return ArrayType(annotation).of
    if not has_arrays(annotation):
        return None
    if len(parts := choices(annotation)) > 1:
        return _of_union(parts, known)
    kind: Any = get_origin(annotation) or annotation
    if fields := record_fields(annotation):
        if kind in known:
            return lambda value: known[kind](value)
        found: dict[str, Check] = {}
        known[kind] = partial(_of_record, found)
        checks = {name: _check_of(one, known) for name, one in fields.items()}
        found |= {name: check for name, check in checks.items() if check is not None}
        return known[kind]
    return partial(
        _of_elements, [_check_of(one, known) for one in get_args(annotation) if one is not ...]
    )


def _of_union(parts: tuple[Any, ...], known: dict[Any, Check]) -> Check:
    arrays = [ArrayType(one).of for one in parts if is_array(one)]
    others = [_check_of(one, known) for one in parts if not is_array(one)]
    takes_lists = len(parts) == len(arrays) + (NoneType in parts)

    def check(value: Any) -> Any:
        if not hasattr(value, "__array__") and not (takes_lists and value is not None):
            for other in others:
                value = value if other is None else other(value)
            return value
        return _by_first(arrays, value) if arrays else value

    return check


def _of_record(checks: Mapping[str, Check], value: Any) -> Any:
    is_dict = isinstance(value, dict)
    made: Any = copy.copy(value)  # pyright: ignore[reportUnknownArgumentType]
    for name, check in checks.items():
        given: Any = made.get(name) if is_dict else getattr(value, name, None)
        if given is None:
            continue
        one = _named(name, check, given)
        if is_dict:
            made[name] = one
        else:
            object.__setattr__(made, name, one)  # it may be frozen
    return made


def _of_elements(checks: list[Check | None], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(str(key), checks[-1], one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not isinstance(value, (list, tuple)):
        return value
    if not isinstance(value, tuple) or len(checks) != len(value):  # pyright: ignore[reportUnknownArgumentType]
        checks = checks[:1] * len(value)  # pyright: ignore[reportUnknownArgumentType]
    elements: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    pairs = zip(checks, elements, strict=True)
    made = [_named(str(at), check, one) for at, (check, one) in enumerate(pairs)]
    return tuple(made) if isinstance(value, tuple) else made


def _by_first(checks: Sequence[Check], value: Any) -> Any:
    """Converts a value by the first check that takes it; raises the error of the first of all."""
    first: ValueError | None = None
    for check in checks:
        try:
            return check(value)
        except ValueError as error:
            first = error if first is None else first
    assert first is not None
    try:
        raise first
    finally:
        del first  # its traceback holds this frame


def is_number(dtype: Any) -> bool:
    """Returns whether a dtype is numeric, including `bfloat16` of ``ml_dtypes``."""
    return dtype.kind in _KINDS or dtype.isbuiltin == 2  # registered by another package


def unmarked(annotation: Any) -> Any:
    while get_origin(annotation := bare(annotation)) in _MARKS:
        [annotation] = get_args(annotation)
    return annotation


def _shape_of(annotation: Any) -> _Shape | None:
    """Returns the sizes that a type of tuples declares; None for any number of dimensions."""
    if get_origin(annotation) is not tuple or any(map(_is_open, get_args(annotation))):
        return None
    return tuple(map(_size_of, get_args(annotation)))


def _is_open(annotation: Any) -> bool:
    is_unpacked = getattr(annotation, "__unpacked__", False)
    return annotation is Ellipsis or is_unpacked or get_origin(annotation) in _UNPACK


def _size_of(annotation: Any) -> _Size:
    sizes: set[int] = set()
    for one in choices(annotation):
        values = get_args(one) if get_origin(one) is Literal else ()
        if not values or not all(isinstance(value, int) for value in values):
            return None
        sizes |= set(values)
    return frozenset(sizes)


def _fits(shape: tuple[int, ...], declared: _Shape) -> bool:
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(size is None or n in size for n, size in pairs)


def _shape_text(declared: _Shape) -> str:
    sizes = ["any" if one is None else " or ".join(map(str, sorted(one))) for one in declared]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _check_numbers(value: Any) -> None:
    """Raises a `ValueError` if nested lists have anything but numbers in them."""
    # Numpy makes each text in an array as long as the longest before its type can be refused: one
    # of a MiB and a thousand short ones would take 4 GiB.
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
