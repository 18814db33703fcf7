"""The JSON of the admin API: how values are written, and how they are made again."""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from shoal.core.json_text import json_bytes
from shoal.core.options.records import Same
from shoal.errors import NotDurable
from shoal.serving.config.config import BackendConfig, durable_options


def written(value: Any) -> bytes:
    """Writes a value as JSON; arrays become lists, and dataclasses become objects.

    Raises:
        TypeError: It holds an object that JSON can't represent.
        ValueError: It holds a float or text that JSON can't represent, or contains itself.
    """
    return json_bytes(value, _plain)


HIDDEN: Final = "***"
"""The text that is shown in place of a secret."""


def config_shown(config: BackendConfig) -> dict[str, Any]:
    """Returns the options that a config was given, in the form in which they are shown.

    A function that was given as an object is shown as an import path made from its name, which may
    lead to nothing. Other objects are shown as text. Of environment variables only the names are
    shown, as the values may be secrets.
    """
    shown: dict[str, Any] = {}
    for name, value in config.given().items():
        try:
            shown.update(durable_options({name: value}))
        except NotDurable:
            shown[name] = _path_of(value) if callable(value) else _text_of(value)
    if "env" in shown:
        shown["env"] = dict.fromkeys(shown["env"], HIDDEN)
    return shown


def without_hidden(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options that were sent, without ``env`` if `config_shown` has hidden its values.

    A client that sends back a config as it was shown does not mean to change them.
    """
    env = config.get("env")
    is_hidden = isinstance(env, Mapping) and HIDDEN in cast("Mapping[str, Any]", env).values()
    return {name: value for name, value in config.items() if name != "env" or not is_hidden}


def shown(result: Any) -> Any:
    """Returns the result of a verb in the form in which it is sent."""
    if isinstance(result, BackendConfig):
        return config_shown(result)
    if isinstance(result, Mapping):
        return {name: shown(one) for name, one in cast("Mapping[str, Any]", result).items()}
    return result


def made(wanted: Any, value: Any) -> Any:
    """Makes the result of a verb from JSON values, by its annotation.

    Members for which the class has no field are ignored, since the other side may be newer.

    Args:
        wanted: The annotation of the value to make.
        value: The JSON value.

    Raises:
        TypeError: The value does not fit the annotation.
    """
    if wanted is Any:
        return value
    if wanted is type(None):
        return None
    if wanted is BackendConfig:
        return BackendConfig.of(value)
    if is_dataclass(wanted):
        return _made_dataclass(wanted, value)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return made(inner, value)
    if origin is Mapping:
        _check(value, dict, wanted)
        return {key: made(arguments[1], one) for key, one in value.items()}
    if origin is Sequence:
        _check(value, list, wanted)
        return tuple(made(arguments[0], one) for one in value)
    if origin is not Literal and isinstance(wanted, type):
        _check(value, (int, float) if wanted is float else wanted, wanted)
    return value


def _made_dataclass(wanted: Any, value: Any) -> Any:
    _check(value, dict, wanted)
    hints = _hints(wanted)
    known = {one.name for one in fields(wanted)}
    return wanted(**{k: made(hints[k], one) for k, one in value.items() if k in known})


@functools.cache
def _hints(wanted: Any) -> Mapping[str, Any]:
    return get_type_hints(wanted)


def _check(value: Any, kind: Any, wanted: Any) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"the server sent {value!r}, which is not of type {wanted}")


def _plain(value: Any) -> Any:
    if (as_list := getattr(value, "tolist", None)) is not None:
        return as_list()
    if is_dataclass(value) and not isinstance(value, type):
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: one for name, one in values.items() if not isinstance(one, Same)}
    hint = (
        f"; give its import path, such as {_path_of(value)!r}"
        if callable(value)
        else ", which has None, truth values, numbers, text, lists, and dicts with text for keys"
    )
    raise TypeError(f"{value!r} can't be sent as JSON{hint}")


def _path_of(function: Callable[..., Any]) -> str:
    named = cast("Any", function if hasattr(function, "__qualname__") else type(function))
    parts = (re.sub(r"\W", "_", part) for part in str(named.__qualname__).split("."))
    return f"{named.__module__}:{'.'.join(parts)}"


def _text_of(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=repr))
    except (TypeError, ValueError, RecursionError):
        return repr(value)
