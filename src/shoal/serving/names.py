"""Checks of the names of backends and endpoints, and of the routes and methods of endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from shoal.errors import NameTaken, NoSuchName

T = TypeVar("T")

RESERVED: Final = "/-"
"""The path under which the server's own routes are."""

DEFAULT_METHODS: Final = ("GET", "POST")
"""The HTTP methods of an endpoint by default. GET is the default of Ray Serve's
``create_endpoint``, with data in the query; POST is for an item as JSON."""

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

TAG_FORM: Final = "a name has 1 to 64 of the characters A-Z a-z 0-9 _ . : -, and not dots alone"
"""The form of a name, for messages."""

PARAMETER_FORMS: Final = "{name}, {name:int}, {name:float}, {name:uuid} or {name:path}"
"""The forms of a parameter in a path, for messages; they are Starlette's."""

_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::(?:str|path|int|float|uuid))?\}")
_NAME: Final = re.compile(r"\{[A-Za-z0-9_]+(?::str)?")
_UNREACHABLE: Final = re.compile(r"\A//|%[0-9A-Fa-f]{2}|/\.\.?(?=/|\Z)|[\ud800-\udfff]")
_TAG: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.:-]{1,64}")


def is_tag(tag: str) -> bool:
    """A name is one plain word: it is used in paths, in metrics and in the tags of replicas."""
    # A path would read dots alone as a relative step.
    return _TAG.fullmatch(tag) is not None


def checked_tag(what: str, tag: Any) -> str:
    """Checks a name; `what` says what it names, such as ``"a backend's tag"``."""
    if not isinstance(tag, str):
        raise TypeError(f'{what} must be text such as "embed-v2", not {tag!r}')
    if not is_tag(tag):
        raise ValueError(f"{tag!r} can't be {what}: {TAG_FORM}")
    return tag


def not_there(kind: str, name: object, there: Iterable[str]) -> str:
    return f"there is no {kind} {name!r}; there are: {', '.join(sorted(there)) or 'none'}"


def found(kind: str, name: Any, there: Mapping[str, T]) -> T:
    """Raises `NoSuchName`, for a name of any type."""
    try:
        one = there.get(name)
    except TypeError:  # an unhashable value is not a name
        one = None
    if one is None:
        raise NoSuchName(not_there(kind, name, there))
    return one


def parameter_names(path: str) -> list[str]:
    return _PARAMETER.findall(path)


def checked_route(route: Any) -> str | None:
    return None if route is None else checked_path(route, f'route="/{str(route).strip("/")}"')


def checked_path(path: Any, line: str, *, may_have_parameters: bool = True) -> str:
    """Checks the path of an endpoint or a mount; messages suggest `line`."""
    if not isinstance(path, str):
        raise TypeError(f"a path must be text, not {path!r}; write {line}")
    if not path.startswith("/"):
        raise ValueError(f'a path must start with "/", and {path!r} does not; write {line}')
    names = parameter_names(path) if may_have_parameters else []
    if set(_PARAMETER.sub("", path) if may_have_parameters else path) & set("{}?#"):
        allowed = (
            f"; its parameters are written as {PARAMETER_FORMS}" if may_have_parameters else ""
        )
        raise ValueError(f"{path!r}: a path has no query and no fragment, and no braces{allowed}")
    if len(set(names)) < len(names):
        raise ValueError(f"{path!r}: two parameters of a path can't have one name")
    if path == RESERVED or path.startswith(f"{RESERVED}/"):
        raise ValueError(f"{path!r}: the paths under {RESERVED}/ are the application's own")
    if _UNREACHABLE.search(path):
        raise ValueError(
            f"no request can reach {path!r}: clients and servers resolve '//', '.', '..' and "
            "escapes such as %20 before a path is looked up; write the characters themselves"
        )
    return path


def without_names(path: str) -> str:
    # Paths that differ only in names of parameters match the same requests.
    return _NAME.sub("{", path)


def check_free(
    route: str | None,
    methods: Iterable[str],
    others: Iterable[tuple[str, str | None, Iterable[str]]],
) -> None:
    """Raises `NameTaken` if another endpoint, given by name, route and methods, has the route."""
    for name, other, theirs in others:
        if route is not None and other is not None and without_names(other) == without_names(route):
            for method in methods:
                if method in theirs:
                    raise NameTaken(
                        f"{method} {route} is answered by the endpoint {name!r} already"
                    )


def checked_methods(methods: Any) -> tuple[str, ...]:
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        one = methods if isinstance(methods, str) else "POST"
        raise TypeError(f'methods must be a list, not {methods!r}; write methods = ["{one}"]')
    found: list[str] = []
    for method in cast("Iterable[object]", methods):
        if not isinstance(method, str):
            raise TypeError(f'a method is a name such as "POST", not {method!r}')
        if method.upper() not in METHODS:
            raise ValueError(f"{method!r} is not a method; there are {', '.join(METHODS)}")
        found.append(method.upper())
    if not found:
        raise ValueError('an endpoint needs a method; write methods=("POST",)')
    return tuple(dict.fromkeys(found))
