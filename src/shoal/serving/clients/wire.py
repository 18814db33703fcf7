"""The JSON of the admin API: values and exceptions, how they are sent and recreated.

Each exception has a kind, a word that both sides know. The client creates only classes from these
tables: it imports nothing, and looks up no class by a name that was sent. An exception of the
user's code is sent as its nearest builtin base class, so ``except ValueError`` works on either
side. The text names its own class.
"""

from __future__ import annotations

import builtins
import functools
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from shoal import errors
from shoal.core.json_text import json_bytes
from shoal.core.options.option import plain_record
from shoal.failures.exceptions import class_name
from shoal.serving.backend_config import BackendConfig


def written(value: Any) -> bytes:
    """Raises `TypeError` or `ValueError` for values that JSON can't represent."""
    return json_bytes(value, _plain)


HIDDEN: Final = "***"
"""The text that is shown in place of a secret."""


def config_shown(config: BackendConfig) -> dict[str, Any]:
    """Returns the given options as JSON for display."""
    # A function is shown as an import path made from its name, which may not resolve. The values of
    # environment variables may be secrets, so only their names are shown.
    shown = config.durable_part()
    for name, value in config.given().items():
        if name not in shown:
            shown[name] = _path_of(value) if callable(value) else _text_of(value)
    if "env" in shown:
        shown["env"] = dict.fromkeys(shown["env"], HIDDEN)
    return shown


def without_hidden(config: Mapping[str, Any]) -> dict[str, Any]:
    # A client that sends back a config as it was shown does not mean to change `env`.
    env = config.get("env")
    is_hidden = isinstance(env, Mapping) and HIDDEN in cast("Mapping[str, Any]", env).values()
    return {name: value for name, value in config.items() if name != "env" or not is_hidden}


def shown(result: Any) -> Any:
    if isinstance(result, BackendConfig):
        return config_shown(result)
    if isinstance(result, Mapping):
        return {name: shown(one) for name, one in cast("Mapping[str, Any]", result).items()}
    return result


def from_json(wanted: Any, value: Any) -> Any:
    """Makes a verb's result from JSON by its annotation; raises `TypeError` if it does not fit."""
    if wanted is Any:
        return value
    if wanted is type(None):
        return None
    if wanted is BackendConfig:
        return BackendConfig.of(value)
    if is_dataclass(wanted):
        return _dataclass_from_json(wanted, value)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return from_json(inner, value)
    if origin is Mapping:
        _check(value, dict, wanted)
        return {key: from_json(arguments[1], one) for key, one in value.items()}
    if origin is Sequence:
        _check(value, list, wanted)
        return tuple(from_json(arguments[0], one) for one in value)
    if origin is not Literal and isinstance(wanted, type):
        _check(value, (int, float) if wanted is float else wanted, wanted)
    return value


def _dataclass_from_json(wanted: Any, value: Any) -> Any:
    _check(value, dict, wanted)
    hints = _hints(wanted)
    # Unknown members are ignored, since the other side may be newer.
    return wanted(**{k: from_json(hints[k], one) for k, one in value.items() if k in hints})


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
        return plain_record(value)
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


# Errors of these classes do not leave their process.
_LOCAL: Final = (errors.ShoalError, errors.HttpProblem, errors.LifespanFailed)


def _kind(cls: type[Exception]) -> str:
    if cls is errors.BatcherClosed:
        return "closed"
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


_OURS: Final = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.ShoalError) and cls not in _LOCAL
]
KINDS: Final[Mapping[str, type[Exception]]] = {
    _kind(cls): cls for cls in (*_OURS, TypeError, ValueError)
}

RAISED: Final = "raised"
"""The kind of an exception that is not in `KINDS`."""

_ATTRIBUTES: Final[Mapping[type[Exception], Sequence[str]]] = {
    errors.WrongBatchSize: ("expected", "got"),
    errors.ReplicaDied: ("replica", "exit_code", "signal", "last_lines"),
    errors.RetryLater: ("after_s",),
}
"""The attributes that an error has beside its text."""

_KIND_OF: Final = {cls: kind for kind, cls in KINDS.items()}
_BUILTINS: Final[Mapping[str, type[Exception]]] = {
    name: getattr(builtins, name)
    for name in (
        *("ArithmeticError", "AssertionError", "AttributeError", "BufferError", "ConnectionError"),
        *("EOFError", "FileNotFoundError", "ImportError", "IndexError", "KeyError", "LookupError"),
        *("MemoryError", "NameError", "NotImplementedError", "OSError", "OverflowError"),
        *("PermissionError", "RecursionError", "RuntimeError", "TimeoutError", "TypeError"),
        *("ValueError", "ZeroDivisionError"),
    )
}


@dataclass(frozen=True)
class WireError:
    kind: str  # one of `KINDS`, or `RAISED`
    text: str
    # further attributes of its class
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


def error_to_wire(error: Exception) -> WireError:
    for cls in type(error).__mro__:
        is_ours = cls not in (TypeError, ValueError) or cls is type(error)
        if is_ours and (kind := _KIND_OF.get(cls)) is not None:
            return WireError(kind, _text(error), _more(error))
    like = next((cls.__name__ for cls in type(error).__mro__ if _is_builtin(cls)), "")
    return WireError(RAISED, _text(error), {"class": class_name(error), "like": like})


def error_from_wire(error: WireError) -> Exception | None:
    """Returns None if the kind is unknown."""
    text, more = error.text, error.more
    if error.kind == RAISED:
        name, like = str(more.get("class", "")), str(more.get("like", ""))
        cls = _BUILTINS.get(like, errors.HandlerFailed)
        return cls(text if name == like else f"{name}: {text}")
    kind = KINDS.get(error.kind)
    if kind is None or kind not in _ATTRIBUTES:
        return None if kind is None else kind(text)
    found = kind.__new__(kind)  # its constructor wants more than a text
    found.args = (text,)
    vars(found).update({name: more.get(name) for name in _ATTRIBUTES[kind]})
    return found


def _is_builtin(cls: type) -> bool:
    return _BUILTINS.get(cls.__name__) is cls


def _text(error: Exception) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]  # str() gives its repr, which would gain quotes at each sending
    return str(error)


def _more(error: Exception) -> Mapping[str, Any]:
    names = next((names for kind, names in _ATTRIBUTES.items() if isinstance(error, kind)), ())
    return {name: getattr(error, name) for name in names}
