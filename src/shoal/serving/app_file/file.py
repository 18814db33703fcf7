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
from shoal.replicas.code.definition import split_import_path
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
    not_there,
    without_names,
)
from shoal.serving.state_records import BackendRecord, EndpointRecord, ShadowRecord

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping


_TABLES: Final = ("server", "backends", "endpoints")
_OF_BACKEND: Final = ("code", "init_args", "init_kwargs")  # beside the options
_OF_ENDPOINT: Final = ("route", "methods", "backend", "traffic", "shadows")
_OF_SHADOW: Final = ("backend", "proportion", "compare")
_SHADOW_FORM: Final = 'write backend = "TAG" and proportion = 0.1'
_ANY_TEXT: Final = ("user_config",)
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, kw_only=True)
class AppFile:
    name: str  # the path, as the user wrote it
    server: Mapping[str, Any]
    backends: Mapping[str, BackendRecord]
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
    checks = _EndpointChecks(flaws, named.keys())
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


def _backend(flaws: Flaws, tag: str, value: Any) -> BackendRecord | None:
    path = ("backends", tag)
    before = len(flaws.found)
    flaws.checked(path, checked_tag, "a backend's tag", tag)
    given = flaws.table(path, value, (*_OF_BACKEND, *NAMES, *RENAMED))
    if not isinstance(value, dict):
        return None
    code = _checked_code(flaws, path, given)
    init_args, init_kwargs = _checked_arguments(flaws, path, given)
    options = {name: one for name, one in given.items() if name not in _OF_BACKEND}
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


def _checked_code(flaws: Flaws, path: Keys, given: Mapping[str, Any]) -> str | None:
    if "code" in given:
        return _checked_path(flaws, (*path, "code"), given["code"])
    flaws.add(path, 'has no code; write code = "package.module:Name"')
    return None


def _checked_path(flaws: Flaws, path: Keys, value: Any) -> str | None:
    if not isinstance(value, str):
        flaws.add(path, f'must be text, as "package.module:Name", not {value!r}')
        return None
    return value if flaws.checked(path, split_import_path, value) else None


def _checked_arguments(
    flaws: Flaws, path: Keys, given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = given.get("init_args", []), given.get("init_kwargs", {})
    if not isinstance(args, list):
        flaws.add((*path, "init_args"), f'must be an array, as ["small", 2], not {args!r}')
    elif not isinstance(kwargs, dict):
        flaws.add((*path, "init_kwargs"), f'must be a table, as {{size = "small"}}, not {kwargs!r}')
    else:
        found: tuple[list[Any], dict[str, Any]] = cast("Any", (args, kwargs))
        for name, one in zip(("init_args", "init_kwargs"), found, strict=True):
            flaws.checked((*path, name), exact_json, name, one)
        return found
    return [], {}


def _checked_options(flaws: Flaws, path: Keys, given: Mapping[str, Any]) -> dict[str, Any]:
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
    def __init__(self, flaws: Flaws, backends: Collection[str]) -> None:
        self._flaws = flaws
        self._backends = backends
        self._routes: dict[tuple[str, str], Keys] = {}

    def checked(self, name: str, value: Any) -> EndpointRecord | None:
        flaws, path = self._flaws, ("endpoints", name)
        before = len(flaws.found)
        self._flaws.checked(path, checked_tag, "an endpoint's name", name)
        given = flaws.table(path, value, _OF_ENDPOINT)
        if not isinstance(value, dict):
            return None
        route = self._flaws.checked((*path, "route"), checked_route, given.get("route"))
        methods = self._flaws.checked(
            (*path, "methods"), checked_methods, given.get("methods", DEFAULT_METHODS)
        )
        traffic = self._traffic(path, given)
        shadows = self._shadows((*path, "shadows"), given.get("shadows", []))
        self._check_free(path, route, methods or ())
        if len(flaws.found) > before:
            return None
        return EndpointRecord(
            name=name, route=route, methods=methods or (), traffic=traffic, shadows=shadows
        )

    def _traffic(self, path: Keys, given: dict[str, Any]) -> dict[str, float]:
        if ("backend" in given) == ("traffic" in given):
            both = "has both backend and traffic; leave one out"
            none = (
                'has no backend; write backend = "TAG", or traffic = {a = 0.9, b = 0.1}, or '
                "traffic = {} to hold its requests until traffic is set"
            )
            self._flaws.add(path, both if "backend" in given else none)
            return {}
        if "backend" in given:
            tag = given["backend"]
            return {tag: 1.0} if self._is_backend((*path, "backend"), tag) else {}
        path = (*path, "traffic")
        weights = self._flaws.table(path, given["traffic"])
        known = [tag for tag in weights if self._is_backend((*path, tag), tag)]
        if not weights or len(known) < len(weights):
            return {}
        checked = self._flaws.checked(path, Traffic.checked, weights, known)
        return {} if checked is None else dict(checked.weights)

    def _shadows(self, path: Keys, value: Any) -> dict[str, ShadowRecord]:
        if not isinstance(value, list):
            self._flaws.add(path, f"must be an array of tables, as [[{'.'.join(map(str, path))}]]")
            return {}
        found: dict[str, ShadowRecord] = {}
        for place, one in enumerate(cast("Any", value)):
            at = (*path, place)
            given = self._flaws.table(at, one, _OF_SHADOW)
            for missing in [key for key in _OF_SHADOW[:2] if isinstance(one, dict)]:
                if missing not in given:
                    self._flaws.add(at, f"has no {missing}; {_SHADOW_FORM}")
            tag: Any = given.get("backend")
            proportion: Any = given.get("proportion")
            if tag is not None and not self._is_backend((*at, "backend"), tag):
                tag = None
            if tag in found:
                self._flaws.add((*at, "backend"), f"{tag!r} has a shadow of this endpoint already")
            shadow = proportion is not None and self._flaws.checked(
                (*at, "proportion"), Shadow, "a backend", proportion
            )
            compare = given.get("compare")
            if compare is not None:
                compare = _checked_path(self._flaws, (*at, "compare"), compare)
            if tag is not None and shadow:
                found[tag] = ShadowRecord(proportion=shadow.proportion, compare=compare)
        return found

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

    def _is_backend(self, path: Keys, tag: Any) -> bool:
        if isinstance(tag, str) and tag in self._backends:
            return True
        self._flaws.add(path, not_there("backend", tag, self._backends))
        return False
