"""The forms of the arguments of a client's verbs: how each is sent as JSON, and made from it again.

Before it sends a request, a remote client checks what it can without the server, by the functions
with which the controller checks it. So the errors are the same. Other values are checked by the
controller alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.json_text import check_keys
from shoal.core.traffic import Shadow, Traffic
from shoal.errors import NoSuchName
from shoal.replicas.code.definition import named_arguments
from shoal.serving.clients.wire_forms import without_hidden
from shoal.serving.config.config import BackendConfig
from shoal.serving.names import checked_methods, checked_route, checked_tag, is_tag

if TYPE_CHECKING:
    from shoal.serving.imports import ImportRule


@dataclass(frozen=True)
class Form:
    """The form of an argument in JSON.

    Attributes:
        sent: Checks the argument, and returns what is sent.
        received: Returns the argument, from what was received. Checks its import paths by the rule.
    """

    sent: Callable[[Any], Any] = lambda value: value
    received: Callable[[ImportRule, Any], Any] = lambda _, value: value


def array(name: str, value: Any) -> Sequence[Any]:
    """Checks that a JSON value is an array.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, list):
        raise TypeError(f"{name} must be an array, not {value!r}")
    return cast("Sequence[Any]", value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Checks that a JSON value is an object.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, not {value!r}")
    return cast("dict[str, Any]", value)


def _existing(kind: str, name: Any) -> str:
    # An invalid name may contain a "/" and change the path; nothing can have that name anyway.
    if not isinstance(name, str) or not is_tag(name):
        raise NoSuchName(f"there is no {kind} {name!r}")
    return name


def _path(name: str, imports: ImportRule, path: Any) -> str:
    if not isinstance(path, str):
        raise TypeError(
            f"{name} must be an import path such as 'package.module:Name', not {path!r}"
        )
    return imports.checked(path)


def _compare(imports: ImportRule, path: Any) -> str | None:
    return None if path is None else _path("compare", imports, path)


def _init_args(values: Any) -> Any:
    check_keys("init_args", values)
    return values


def _init_kwargs(values: Any) -> dict[str, Any]:
    named = dict(named_arguments(values))
    check_keys("init_kwargs", named)
    return named


def _config(config: BackendConfig | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        if not all(isinstance(name, str) for name in cast("Mapping[object, Any]", config)):
            BackendConfig.of(config)  # raises the error for that
        for name in ("user_config", "placement_options"):
            check_keys(name, config.get(name))
        return config
    return BackendConfig.of(config).durable()


def _changes(changes: Any) -> Mapping[str, Any]:
    # None stands for the defaults in a whole config only.
    if not isinstance(changes, (BackendConfig, Mapping)):
        BackendConfig().changed(changes)  # raises the error for that
    return _config(cast("Any", changes))


def _allowed_config(imports: ImportRule, config: Any) -> Any:
    if isinstance(config, dict):
        return imports.checked_config(cast("dict[str, Any]", config))
    return config


def _allowed_changes(imports: ImportRule, changes: dict[str, Any]) -> Any:
    return imports.checked_config(without_hidden(changes))


def _weights(weights: Any) -> Any:
    Traffic.checked(weights, weights)
    return weights


def _proportion(proportion: Any) -> Any:
    Shadow("", proportion)
    return proportion


BACKEND: Final = Form(partial(_existing, "backend"))
ENDPOINT: Final = Form(partial(_existing, "endpoint"))
NEW_BACKEND: Final = Form(partial(checked_tag, "a backend's tag"))
NEW_ENDPOINT: Final = Form(partial(checked_tag, "an endpoint's name"))
ROUTE: Final = Form(checked_route)
METHODS: Final = Form(checked_methods)
WEIGHTS: Final = Form(_weights)
PROPORTION: Final = Form(_proportion)
DEFINITION: Final = Form(received=partial(_path, "definition"))
COMPARE: Final = Form(received=_compare)
INIT_ARGS: Final = Form(_init_args, lambda _, values: array("init_args", values))
INIT_KWARGS: Final = Form(_init_kwargs, lambda _, values: mapping("init_kwargs", values))
CONFIG: Final = Form(_config, _allowed_config)
CHANGES: Final = Form(_changes, _allowed_changes)
