"""The functions between HTTP and the code of a backend: ``decode`` and ``encode``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.batching.handlers.annotations import read_signature
from shoal.replicas.code.definition import imported, split_import_path
from shoal.replicas.code.instance import is_async

if TYPE_CHECKING:
    from collections.abc import Callable


class Converters(NamedTuple):
    decode: Callable[[Any], Any] | None
    encode: Callable[[Any, Any], Any] | None


def checked_converter(name: str, value: Any) -> Any:
    """Checks a function or an import path, which is not imported yet."""
    if isinstance(value, str):
        try:
            split_import_path(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return value
    if not callable(value):
        raise TypeError(
            f"{name} must be a function or its import path, not {value!r}; write {name}=a_function"
        )
    if name == "encode" and is_async(value):
        raise TypeError(f"encode must be a plain function, and {value!r} is async")
    takes = (1,) if name == "decode" else (1, 2)
    if not any(_takes(value, count) for count in takes):
        wanted = "a Request" if name == "decode" else "a result, or a result and its Request"
        raise TypeError(f"{name} must take {wanted}, and {value!r} does not")
    return value


def loaded_converters(decode: Any, encode: Any) -> Converters | None:
    if decode is None and encode is None:
        return None
    decode, encode = _loaded("decode", decode), _loaded("encode", encode)
    return Converters(decode, None if encode is None else _of_both(encode))


def _loaded(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = imported(value)
    if not callable(found):
        raise TypeError(f"{name}={value!r} must name a function, not {found!r}")
    return checked_converter(name, found)


def _of_both(encode: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    if _takes(encode, 2):
        return lambda request, result: encode(result, request)
    return lambda _request, result: encode(result)


def _takes(function: Any, count: int) -> bool:
    try:
        read_signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some functions that are written in C have no signature
        return True
    return True
