"""The tables ``[endpoints.NAME]`` of an application's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.traffic import Shadow, Traffic
from shoal.replicas.code.definition import split_import_path
from shoal.serving.names import (
    DEFAULT_METHODS,
    checked_methods,
    checked_route,
    checked_tag,
    not_there,
    without_names,
)
from shoal.serving.state.records import EndpointRecord, ShadowRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shoal.serving.app_file.flaws import Flaws
    from shoal.serving.app_file.positions import Path

_KEYS: Final = ("route", "methods", "backend", "traffic", "shadows")
_SHADOW_KEYS: Final = ("backend", "proportion", "compare")


class EndpointChecks:
    def __init__(self, flaws: Flaws, backends: Collection[str]) -> None:
        self._flaws = flaws
        self._backends = backends
        self._routes: dict[tuple[str, str], Path] = {}

    def checked(self, name: str, value: Any) -> EndpointRecord | None:
        """Returns None if it has errors."""
        flaws, path = self._flaws, ("endpoints", name)
        before = len(flaws.found)
        self._try(path, checked_tag, "an endpoint's name", name)
        given = flaws.table(path, value, _KEYS)
        if not isinstance(value, dict):
            return None
        route = self._try((*path, "route"), checked_route, given.get("route"))
        methods = self._try(
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

    def _traffic(self, path: Path, given: dict[str, Any]) -> dict[str, float]:
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
        checked = self._try(path, Traffic.checked, weights, known)
        return {} if checked is None else dict(checked.weights)

    def _shadows(self, path: Path, value: Any) -> dict[str, ShadowRecord]:
        if not isinstance(value, list):
            self._flaws.add(path, f"must be an array of tables, as [[{'.'.join(map(str, path))}]]")
            return {}
        found: dict[str, ShadowRecord] = {}
        for place, one in enumerate(cast("Any", value)):
            at = (*path, place)
            given = self._flaws.table(at, one, _SHADOW_KEYS)
            for missing in [key for key in _SHADOW_KEYS[:2] if isinstance(one, dict)]:
                if missing not in given:
                    self._flaws.add(at, f"has no {missing}; {_SHADOW_FORM}")
            tag: Any = given.get("backend")
            proportion: Any = given.get("proportion")
            if tag is not None and not self._is_backend((*at, "backend"), tag):
                tag = None
            if tag in found:
                self._flaws.add((*at, "backend"), f"{tag!r} has a shadow of this endpoint already")
            shadow = proportion is not None and self._try(
                (*at, "proportion"), Shadow, "a backend", proportion
            )
            compare = self._compare(at, given)
            if tag is not None and shadow:
                found[tag] = ShadowRecord(proportion=shadow.proportion, compare=compare)
        return found

    def _compare(self, at: Path, given: dict[str, Any]) -> str | None:
        compare = given.get("compare")
        if compare is None:
            return None
        if not isinstance(compare, str):
            self._flaws.add(
                (*at, "compare"), f'must be text, as "package.module:a_function", not {compare!r}'
            )
            return None
        self._try((*at, "compare"), split_import_path, compare)
        return compare

    def _check_free(self, path: Path, route: str | None, methods: Collection[str]) -> None:
        for method in methods if route is not None else ():
            taken = self._routes.setdefault((without_names(str(route)), method), path)
            if taken != path:
                self._flaws.add(
                    (*path, "route"),
                    f"{method} {route} is answered by the endpoint {taken[1]!r} already, on line "
                    f"{self._flaws.line(taken)}",
                )
                break

    def _is_backend(self, path: Path, tag: Any) -> bool:
        if isinstance(tag, str) and tag in self._backends:
            return True
        self._flaws.add(path, not_there("backend", tag, self._backends))
        return False

    def _try(self, path: Path, check: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a check; if that raises, adds a flaw and returns None."""
        try:
            return check(*arguments)
        except (TypeError, ValueError) as error:
            self._flaws.add(path, str(error))
            return None


_SHADOW_FORM: Final = 'write backend = "TAG" and proportion = 0.1'
