"""The tables ``[backends.TAG]`` of an application's file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import NotDurable
from shoal.replicas.code.definition import split_import_path
from shoal.serving.config.config import BackendConfig
from shoal.serving.config.json import exact_json
from shoal.serving.config.options import NAMES, RENAMED
from shoal.serving.names import checked_tag
from shoal.serving.state.records import BackendRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.serving.app_file.flaws import Flaws
    from shoal.serving.app_file.positions import Path

_OWN: Final = ("code", "init_args", "init_kwargs")
_ANY_TEXT: Final = ("user_config",)


def checked_backend(flaws: Flaws, tag: str, value: Any) -> BackendRecord | None:
    """Returns None if it has errors."""
    path = ("backends", tag)
    before = len(flaws.found)
    _note(flaws, path, checked_tag, "a backend's tag", tag)
    given = flaws.table(path, value, (*_OWN, *NAMES, *RENAMED))
    if not isinstance(value, dict):
        return None
    code = _checked_code(flaws, path, given)
    init_args, init_kwargs = _checked_arguments(flaws, path, given)
    options = {name: one for name, one in given.items() if name not in _OWN}
    config = _checked_options(flaws, path, options)
    if len(flaws.found) > before or code is None:
        return None
    return BackendRecord(
        tag=tag,
        import_path=code,
        init_args=tuple(init_args),
        init_kwargs=init_kwargs,
        config=config,
    )


def _checked_code(flaws: Flaws, path: Path, given: Mapping[str, Any]) -> str | None:
    code = given.get("code")
    if code is None:
        flaws.add(path, 'has no code; write code = "package.module:Name"')
    elif not isinstance(code, str):
        flaws.add((*path, "code"), f'must be text, as "package.module:Name", not {code!r}')
    elif _note(flaws, (*path, "code"), split_import_path, code):
        return code
    return None


def _checked_arguments(
    flaws: Flaws, path: Path, given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = given.get("init_args", []), given.get("init_kwargs", {})
    if not isinstance(args, list):
        flaws.add((*path, "init_args"), f'must be an array, as ["small", 2], not {args!r}')
    elif not isinstance(kwargs, dict):
        flaws.add((*path, "init_kwargs"), f'must be a table, as {{size = "small"}}, not {kwargs!r}')
    else:
        found: tuple[list[Any], dict[str, Any]] = cast("Any", (args, kwargs))
        for name, one in zip(("init_args", "init_kwargs"), found, strict=True):
            _note(flaws, (*path, name), exact_json, name, one)
        return found
    return [], {}


def _checked_options(flaws: Flaws, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks all options, again and again, each time without the one refused before."""
    left = {name: _of_toml(name, one) for name, one in given.items()}
    refused: list[str] = []
    while True:
        error = _refusal(left)
        if error is None:
            return BackendConfig.of(left).durable()
        at = _to_blame(left, error)
        # An error that only follows from leaving out a refused option is not reported.
        if not any(_names(name, error) for name in refused if name != at):
            flaws.add((*path, *_place(left, at, error)), error)
        if at is None:
            return {}
        refused.append(at)
        del left[at]


def _refusal(options: Mapping[str, Any]) -> str | None:
    try:
        BackendConfig.of(options).durable()
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _to_blame(options: Mapping[str, Any], error: str) -> str | None:
    """Returns the option without which the error would not occur."""
    suspects = [
        name
        for name in options
        if _refusal({other: one for other, one in options.items() if other != name}) != error
    ]
    return min(suspects, key=lambda name: _where_named(name, error), default=None)


def _where_named(name: str, error: str) -> int:
    found = re.search(rf"\b{re.escape(RENAMED.get(name, name))}\b", error)
    return len(error) if found is None else found.start()


def _names(name: str, error: str) -> bool:
    return _where_named(name, error) < len(error)


def _place(options: Mapping[str, Any], at: str | None, error: str) -> Path:
    """Returns the path of an option, or of the key in its table that the error names."""
    if at is None:
        return ()
    path: Path = (at,)
    value = options[at]
    while isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        inner = next((key for key in table if _names(key, error)), None)
        if inner is None:
            break
        path, value = (*path, inner), table[inner]
    return path


def _of_toml(name: str, value: Any) -> Any:
    # TOML has no None, so "none" stands for it.
    return None if value == "none" and name not in _ANY_TEXT else value


def _note(flaws: Flaws, path: Path, check: Any, *arguments: Any) -> bool:
    """Runs a check; returns whether it passed, and adds a flaw if not."""
    try:
        check(*arguments)
    except (TypeError, ValueError, NotDurable) as error:
        flaws.add(path, str(error))
        return False
    return True
