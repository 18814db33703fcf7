"""The checks of a declaration: what is wrong with it is said at the line that makes it."""

from __future__ import annotations

from typing import Any

from shoal.serving.names import TAG_FORM, is_tag


def checked_name(name: Any, path: str, taken: dict[str, str]) -> str:
    """Checks the name of an endpoint.

    Args:
        name: The name.
        path: The endpoint's path.
        taken: The paths of the endpoints there are, by name.

    Raises:
        ValueError: It is no name, or is taken.
    """
    if not isinstance(name, str) or not is_tag(name):
        raise ValueError(
            f'{name!r} can\'t name the endpoint {path}: {TAG_FORM}; give one with name="..."'
        )
    if name in taken:
        raise ValueError(
            f"the endpoint {taken[name]} is named {name!r} already; give {path} another with "
            'name="..."'
        )
    return name
