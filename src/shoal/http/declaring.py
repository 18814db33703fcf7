"""The checks of a declaration: what is wrong with it is said at the line that makes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

RESERVED: Final = "/-"
"""Where an application's own routes are."""

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def checked_path(path: Any, line: str) -> str:
    """Checks the path of an endpoint or a mount.

    Args:
        path: The path.
        line: A line that would be right, for the message.

    Raises:
        TypeError: It is no text.
        ValueError: It is no path, or is reserved.
    """
    if not isinstance(path, str):
        raise TypeError(f"a path must be text, not {path!r}; write {line}")
    if not path.startswith("/"):
        raise ValueError(f'a path must start with "/", and {path!r} does not; write {line}')
    if set(path) & set("{}?#"):
        raise ValueError(
            f"{path!r}: a path is plain text, without parameters, a query or a fragment"
        )
    if path == RESERVED or path.startswith(f"{RESERVED}/"):
        raise ValueError(f"{path!r}: the paths under {RESERVED}/ are the application's own")
    return path


def checked_methods(methods: Any) -> tuple[str, ...]:
    """Checks the methods of an endpoint, and writes them in capitals.

    Raises:
        TypeError: They are not names in a tuple or a list.
        ValueError: There is none, or one that is unknown.
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise TypeError(f'methods must be a tuple, not {methods!r}; write methods=("POST",)')
    found: list[str] = []
    for method in cast("Iterable[object]", methods):
        if not isinstance(method, str):
            raise TypeError(f'a method is a name such as "POST", not {method!r}')
        if method.upper() not in METHODS:
            raise ValueError(f"{method!r} is no method; there are {', '.join(METHODS)}")
        found.append(method.upper())
    if not found:
        raise ValueError('an endpoint needs a method; write methods=("POST",)')
    return tuple(dict.fromkeys(found))


def checked_name(name: Any, path: str, taken: dict[str, str]) -> str:
    """Checks the name of an endpoint.

    Args:
        name: The name.
        path: The endpoint's path.
        taken: The paths of the endpoints there are, by name.

    Raises:
        ValueError: It is no name, or is taken.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't name the endpoint {path}: a name has 1 to 64 of the characters "
            'A-Z a-z 0-9 _ . : -; give one with name="..."'
        )
    if name in taken:
        raise ValueError(
            f"the endpoint {taken[name]} is named {name!r} already; give {path} another with "
            'name="..."'
        )
    return name
