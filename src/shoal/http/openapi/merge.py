"""Merging of two OpenAPI documents, so that one page shows a framework's routes and Shoal's."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_Components: TypeAlias = "Mapping[str, Mapping[str, Any]]"

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def merged_openapi(
    outer: Mapping[str, Any], inner: Mapping[str, Any], prefix: str
) -> dict[str, Any]:
    """Merges the document of a mounted application into that of the application around it.

    The outer one wins where both say something: its ``info``, ``servers``, and operations at
    the same path. Components and operations of the inner one with a name of the outer one, but
    another content, get another name. Security requirements of the whole inner document are
    repeated at each of its operations.

    Args:
        outer: The document of the outer application.
        inner: The document of the mounted application, as `shoal.App.openapi` returns it.
        prefix: The path that it is mounted at.

    Raises:
        ValueError: The prefix is no path.
    """
    if not prefix.startswith("/"):
        raise ValueError(f'prefix must be a path such as "/ml", not {prefix!r}')
    prefix = prefix.rstrip("/")
    made: dict[str, Any] = json.loads(json.dumps(outer))
    added: dict[str, Any] = json.loads(json.dumps(inner))
    slug = re.sub(r"[^A-Za-z0-9._-]", "_", prefix.strip("/")) or "inner"
    components: dict[str, dict[str, Any]] = made.setdefault("components", {})
    names = _new_names(components, added.get("components", {}), slug)
    added = _referring(added, names)
    for kind, added_ones in added.get("components", {}).items():
        there = components.setdefault(kind, {})
        there |= {names[kind].get(name, name): one for name, one in added_ones.items()}
    if not components:
        del made["components"]
    schemes = names.get("securitySchemes", {})
    paths: dict[str, Any] = made.setdefault("paths", {})
    taken = {one["operationId"] for one in _operations(paths) if "operationId" in one}
    for operation in _operations(added.get("paths", {})):
        needed = operation.get("security", added.get("security", []))
        if needed or "security" in made:
            operation["security"] = [
                {schemes.get(name, name): scopes for name, scopes in one.items()} for one in needed
            ]
        if "operationId" in operation:
            operation["operationId"] = _free(operation["operationId"], taken, slug)
            taken.add(operation["operationId"])
    for path, item in added.get("paths", {}).items():
        paths.setdefault(prefix + path, item)
    tags = [tag["name"] for tag in made.get("tags", [])]
    new_tags = [tag for tag in added.get("tags", []) if tag["name"] not in tags]
    if new_tags:
        made["tags"] = [*made.get("tags", []), *new_tags]
    return made


def _new_names(outer: _Components, inner: _Components, slug: str) -> dict[str, dict[str, str]]:
    """Returns new names for inner components that differ from outer ones of the same name."""
    # A component that refers to a renamed one differs as well.
    names: dict[str, dict[str, str]] = {kind: {} for kind in inner}
    while True:
        renamed = _referring(inner, names)
        different = [
            (kind, name)
            for kind, by_name in renamed.items()
            for name, one in by_name.items()
            if name not in names[kind] and one != outer.get(kind, {}).get(name, one)
        ]
        if not different:
            return names
        for kind, name in different:
            taken = {*inner[kind], *outer[kind], *names[kind].values()}
            names[kind][name] = _free(name, taken, slug)


def _referring(value: Any, names: Mapping[str, Mapping[str, str]]) -> Any:
    """Returns JSON with its references to components changed to their new names."""
    references = {
        f"#/components/{kind}/{name}": f"#/components/{kind}/{new}"
        for kind, by_name in names.items()
        for name, new in by_name.items()
    }
    return _mapped(value, lambda text: references.get(text, text))


def _free(name: str, taken: Collection[str], slug: str) -> str:
    while name in taken:
        name = f"{slug}.{name}"
    return name


def _operations(paths: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for item in paths.values():
        for method in _METHODS:
            if method in item:
                yield item[method]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Returns JSON with its texts changed, but not the keys of its objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [_mapped(one, change) for one in items]
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in cast("dict[str, Any]", value).items()}
    return value
