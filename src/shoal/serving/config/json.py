"""Values as JSON: checks that each survives it unchanged, before it is stored or sent.

``json`` is not strict enough. It writes a tuple as a list, the key 1 as ``"1"``, and NaN, which is
not valid JSON. Such a value would be different after a restart, and the user's code would fail only
then. So it is refused at once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import NotDurable

if TYPE_CHECKING:
    from shoal.core.options.option import Option

_DEEPEST: Final = 100


def exact_json(what: str, value: Any) -> Any:
    """Returns a copy; raises `NotDurable` with the place and a fix unless JSON preserves it."""
    return _checked(what, value, 0)


def durable(name: str, option: Option, value: Any) -> Any:
    """Returns the checked value of an option as JSON, from which the same value can be made."""
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)  # an import path may be an `OwnPath`
    if option.is_function and not isinstance(value, bool):
        raise NotDurable(
            f"{name}={value!r} is an object of this process, which can't be kept or sent; "
            f'give its import path: {name}="package.module:name"'
        )
    return exact_json(name, option.to_plain(value))


def encoded(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


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
    raise NotDurable(f"{where} can't be kept as JSON: {value!r} is {_hint(value)}")


def _number(where: str, value: float) -> float:
    try:
        encoded(value)
    except ValueError as error:  # NaN, infinity, or an int of thousands of digits
        raise NotDurable(f"{where} can't be kept as JSON: {error}") from None
    return value


def _mapping(where: str, value: dict[Any, Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise NotDurable(
                f"{where} can't be kept as JSON: its key {key!r} would come back as text; "
                "write text for keys"
            )
        found[key] = _checked(f"{where}[{key!r}]", item, depth + 1)
    return found


def _hint(value: Any) -> str:
    if isinstance(value, tuple):
        return "a tuple, which would come back as a list; write a list"
    if callable(value):
        return 'an object of this process; give an import path, such as "package.module:Name"'
    return (
        f"of type {type(value).__name__}; give numbers, text, lists and dicts, and let the code "
        "make the rest of them"
    )
