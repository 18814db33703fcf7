"""Application files: backends and endpoints in TOML, checked without importing their code.

::

    [backends.small]
    code = "my_models:Classifier"
    init_args = ["small.onnx"]
    placement = "process"
    num_replicas = 2

    [endpoints.classify]
    route = "/classify"
    backend = "small"

All errors in a file are reported together, each with its line.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.json_text import exact_json
from shoal.core.traffic import Shadow, Traffic
from shoal.replicas.code.definition import Definition, split_import_path
from shoal.serving.app_file.flaws import AppFileRefused, Flaw, Flaws, lines_of_keys
from shoal.serving.app_file.flaws import Path as Keys
from shoal.serving.app_file.server import checked_server
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backend_options import NAMES, RENAMED
from shoal.serving.names import (
    DEFAULT_METHODS,
    checked_methods,
    checked_route,
    checked_tag,
    found,
    without_names,
)
from shoal.serving.state_records import EndpointRecord

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping


_TABLES: Final = ("server", "backends", "endpoints")
_SHADOW_FORM: Final = 'write backend = "TAG" and proportion = 0.1'
_ANY_TEXT: Final = ("user_config",)
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, kw_only=True)
class AppFile:
    name: str  # the path, as the user wrote it
    server: Mapping[str, Any]
    backends: Mapping[str, tuple[Definition, BackendConfig]]
    endpoints: Mapping[str, EndpointRecord]
    flaws: Flaws  # later errors, when its code is imported


def read_app_file(path: str | os.PathLike[str]) -> AppFile:
    name = str(path)
    text = _text_of(name)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AppFileRefused([_not_toml(name, text, str(error))]) from None
    flaws = Flaws(name, lines_of_keys(text))
    given = flaws.table((), data, _TABLES)
    server = checked_server(flaws, given.get("server", {}))
    named = flaws.table(("backends",), given.get("backends", {}))
    backends = {tag: _backend(flaws, tag, one) for tag, one in named.items()}
    checks = _EndpointChecks(flaws, named)
    paths = flaws.table(("endpoints",), given.get("endpoints", {}))
    endpoints = {name: checks.checked(name, one) for name, one in paths.items()}
    flaws.refuse()
    return AppFile(
        name=name,
        server=server,
        backends={tag: one for tag, one in backends.items() if one is not None},
        endpoints={name: one for name, one in endpoints.items() if one is not None},
        flaws=flaws,
    )


def _text_of(name: str) -> str:
    try:
        return Path(name).read_bytes().decode().replace("\r\n", "\n")
    except OSError as error:
        raise AppFileRefused([Flaw(name, 0, "", f"can't be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise AppFileRefused([Flaw(name, line, "", "is not in UTF-8, as TOML is")]) from None


def _not_toml(name: str, text: str, message: str) -> Flaw:
    found = _PLACE.search(message)
    line = int(found[1]) if found and found[1] else text.rstrip().count("\n") + 1
    return Flaw(name, line, "", f"is not TOML: {_PLACE.sub('', message)}")


def _backend(flaws: Flaws, tag: str, value: Any) -> tuple[Definition, BackendConfig] | None:
    path = ("backends", tag)
    before = len(flaws.found)
    flaws.checked(path, checked_tag, "a backend's tag", tag)
    given = flaws.fields(path, value, _BACKEND)
    if not isinstance(value, dict):
        return None
    if "code" not in given:
        flaws.add(path, 'has no code; write code = "package.module:Name"')
    options = {name: one for name, one in given.items() if name not in _OF_CODE}
    config = _checked_options(flaws, path, options)
    if len(flaws.found) > before:
        return None
    init_args, init_kwargs = given.get("init_args", ()), given.get("init_kwargs", {})
    return Definition(given["code"], tuple(init_args), tuple(init_kwargs.items())), config


def _import_path(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f'must be text, as "package.module:Name", not {value!r}')
    split_import_path(value)
    return value


def _init_args(value: Any) -> Any:
    if not isinstance(value, list):
        raise TypeError(f'must be an array, as ["small", 2], not {value!r}')
    return exact_json("init_args", value)


def _init_kwargs(value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f'must be a table, as {{size = "small"}}, not {value!r}')
    return exact_json("init_kwargs", value)


def _later(value: Any) -> Any:
    """Returns a value that is checked together with others."""
    return value


_OF_CODE: Final = {"code": _import_path, "init_args": _init_args, "init_kwargs": _init_kwargs}
_BACKEND: Final = {**_OF_CODE, **dict.fromkeys((*NAMES, *RENAMED), _later)}


def _checked_options(flaws: Flaws, path: Keys, given: Mapping[str, Any]) -> BackendConfig:
    """Checks all options, again and again, each time without the one refused before."""
    left = {name: _of_toml(name, one) for name, one in given.items()}
    refused: list[str] = []
    while True:
        error = _refusal(left)
        if error is None:
            return BackendConfig.of(left)
        at = _to_blame(left, error)
        # An error that only follows from leaving out a refused option is not reported.
        if not any(_names(name, error) for name in refused if name != at):
            flaws.add((*path, *_place(left, at, error)), error)
        if at is None:
            return BackendConfig()
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


def _place(options: Mapping[str, Any], at: str | None, error: str) -> Keys:
    if at is None:
        return ()
    path: Keys = (at,)
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


class _EndpointChecks:
    def __init__(self, flaws: Flaws, backends: Mapping[str, Any]) -> None:
        self._flaws = flaws
        self._backends = backends
        self._routes: dict[tuple[str, str], Keys] = {}

    def checked(self, name: str, value: Any) -> EndpointRecord | None:
        flaws, path = self._flaws, ("endpoints", name)
        before = len(flaws.found)
        flaws.checked(path, checked_tag, "an endpoint's name", name)
        given = flaws.fields(
            path,
            value,
            {
                "route": checked_route,
                "methods": checked_methods,
                "backend": self._tag,
                "traffic": _later,
                "shadows": _later,
            },
        )
        if not isinstance(value, dict):
            return None
        route, methods = given.get("route"), given.get("methods", DEFAULT_METHODS)
        traffic = self._traffic(path, given)
        shadows = self._shadows((*path, "shadows"), given.get("shadows", []))
        self._check_free(path, route, methods or ())
        if len(flaws.found) > before:
            return None
        return EndpointRecord(
            name=name, route=route, methods=methods, traffic=traffic, shadows=shadows
        )

    def _traffic(self, path: Keys, given: dict[str, Any]) -> dict[str, float]:
        if ("backend" in given) == ("traffic" in given):
            both = "has both backend and traffic; leave one out"
            none = (
                'has no backend; write backend = "TAG", or traffic = {a = 0.9, b = 0.1}, or '
                "traffic = {} to hold its requests until traffic is set"
            )
            self._flaws.add(path, both if "backend" in given else none)
        if "traffic" not in given:
            return {given.get("backend", ""): 1.0}
        path = (*path, "traffic")
        weights = self._flaws.table(path, given["traffic"])
        known = [self._flaws.checked((*path, tag), self._tag, tag) for tag in weights]
        if not weights or None in known:
            return {}
        checked = self._flaws.checked(path, Traffic.checked, weights, known)
        return {} if checked is None else dict(checked.weights)

    def _shadows(self, path: Keys, value: Any) -> dict[str, Shadow]:
        if not isinstance(value, list):
            self._flaws.add(path, f"must be an array of tables, as [[{'.'.join(map(str, path))}]]")
            return {}
        shadows: dict[str, Shadow] = {}
        for place, one in enumerate(cast("Any", value)):
            at = (*path, place)
            given = self._flaws.fields(
                at,
                one,
                {"backend": self._tag, "proportion": _proportion, "compare": _import_path},
            )
            for missing in ("backend", "proportion"):
                if isinstance(one, dict) and missing not in given:
                    self._flaws.add(at, f"has no {missing}; {_SHADOW_FORM}")
            tag, proportion = given.get("backend"), given.get("proportion")
            if tag in shadows:
                self._flaws.add((*at, "backend"), f"{tag!r} has a shadow of this endpoint already")
            if tag is not None and proportion is not None:
                shadows[tag] = Shadow(proportion, given.get("compare"))
        return shadows

    def _check_free(self, path: Keys, route: str | None, methods: Collection[str]) -> None:
        for method in methods if route is not None else ():
            taken = self._routes.setdefault((without_names(str(route)), method), path)
            if taken != path:
                self._flaws.add(
                    (*path, "route"),
                    f"{method} {route} is answered by the endpoint {taken[1]!r} already, on line "
                    f"{self._flaws.line(taken)}",
                )
                break

    def _tag(self, tag: Any) -> Any:
        found("backend", tag, self._backends)
        return tag


def _proportion(value: Any) -> float:
    return Shadow(value).proportion
