"""Values as JSON, for the clients of a server and for its state file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEEPEST: Final = 100


def json_bytes(value: Any, plain: Callable[[Any], Any]) -> bytes:
    """Writes a value as JSON; `plain` converts objects that JSON can't represent."""
    # A value that JSON can't represent raises a TypeError or a ValueError.
    try:
        for key in _keys(value):
            if not isinstance(key, str):  # `json` would silently turn it into text
                raise TypeError(
                    f"this can't be sent as JSON: the key {key!r} of a dict would arrive as text; "
                    "write text for keys"
                )
        text = json.dumps(
            value, default=plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode()
    except RecursionError:
        raise ValueError(
            "this can't be sent as JSON: it is nested too deeply, or contains itself"
        ) from None
    except ValueError as error:
        raise ValueError(f"this can't be sent as JSON: {error}") from None


def _keys(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[object, Any]", value)
        value = cast("Mapping[object, Any]", value).values()
    elif not isinstance(value, (list, tuple)):
        return
    for one in cast("Iterable[Any]", value):
        if isinstance(one, (Mapping, list, tuple)):
            yield from _keys(one)


def exact_json(what: str, value: Any) -> Any:
    """Returns a copy; raises `NotDurable` with the place and a fix unless JSON preserves it."""
    # `json` writes a tuple as a list, the key 1 as "1", and NaN, which is not valid JSON. Such a
    # value would differ after a restart, and the user's code would fail only then.
    return _checked(what, value, 0)


def _checked(where: str, value: Any, depth: int) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    if depth > _DEEPEST:
        raise NotDurable(f"{where} is nested too deeply to be kept as JSON")
    if type(value) in (int, float):
        return _number(where, value)
    if type(value) is list:
        items: list[Any] = cast("Any", value)
        return [_checked(f"{where}[{at}]", item, depth + 1) for at, item in enumerate(items)]
    if type(value) is dict:
        return _mapping(where, cast("Any", value), depth)
    raise _not_durable(where, value)


def _number(where: str, value: float) -> float:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:  # NaN, infinity, or an int of thousands of digits
        raise NotDurable(f"{where} can't be kept as JSON: {error}") from None
    return value


def _mapping(where: str, value: dict[Any, Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise _not_durable(f"a key of {where}", key)
        found[key] = _checked(f"{where}[{key!r}]", item, depth + 1)
    return found


def _not_durable(where: str, value: object) -> NotDurable:
    return NotDurable(
        f"{where} can't be kept as JSON: {value!r} is of type {type(value).__name__}; write text "
        "for keys, lists for tuples, and import paths for objects of this process"
    )
