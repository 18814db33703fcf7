"""The options for OpenAPI's security schemes, and the schemes that endpoints require.

They are only described in the OpenAPI document. Middleware checks the requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

SecurityRequirement: TypeAlias = Mapping[str, Sequence[str]]
"""Schemes that are all needed, by name, each with the scopes that it must give."""

SecurityRequirements: TypeAlias = SecurityRequirement | Sequence[SecurityRequirement]
"""One requirement, or several of which one must be met."""

# OpenAPI allows these names of components.
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
_KINDS: Final = ("apiKey", "http", "mutualTLS", "oauth2", "openIdConnect")
_EXAMPLE: Final = '{"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}'


def checked_schemes(name: str, value: Any) -> dict[str, dict[str, Any]]:
    """Returns a copy of security schemes by name; raises `TypeError` or `ValueError`."""
    found: dict[str, dict[str, Any]] = {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping such as {_EXAMPLE}, not {value!r}")
    for key, scheme in cast("Mapping[str, Any]", value).items():
        if not _is_text(key) or not isinstance(scheme, Mapping):
            raise TypeError(f"{name} must be a mapping such as {_EXAMPLE}, not {value!r}")
        if not _NAME.fullmatch(key):
            raise ValueError(f"{name}: a name has 1 to 64 of A-Z a-z 0-9 . _ -, not {key!r}")
        found[key] = dict(cast("Mapping[str, Any]", scheme))
        if found[key].get("type") not in _KINDS:
            raise ValueError(
                f"{name}: the type of {key!r} must be one of {', '.join(_KINDS)}, "
                f"not {found[key].get('type')!r}"
            )
    return found


def checked_requirements(name: str, value: Any) -> tuple[dict[str, list[str]], ...]:
    """Returns the alternative requirements; raises `TypeError`."""
    given: Any = [value] if isinstance(value, Mapping) else value
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _wrong(name, value)
    return tuple(_requirement(name, one) for one in cast("Sequence[object]", given))


def check_known(needed: Any, schemes: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a requirement names an unknown scheme."""
    for one in needed:
        for scheme in one:
            if scheme not in schemes:
                raise ValueError(
                    f"security names the scheme {scheme!r}, and security_schemes of the "
                    f"application has {', '.join(schemes) or 'none'}"
                )


def _requirement(name: str, value: Any) -> dict[str, list[str]]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value)
    found: dict[str, list[str]] = {}
    for scheme, scopes in cast("Mapping[str, Any]", value).items():
        if not _is_text(scheme) or _is_text(scopes) or not isinstance(scopes, Sequence):
            raise _wrong(name, value)
        found[scheme] = [str(scope) for scope in cast("Sequence[object]", scopes)]
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _wrong(name: str, value: Any) -> TypeError:
    return TypeError(
        f'{name} must map schemes to lists of scopes, such as {{"key": []}}, or be a list of such '
        f"mappings, not {value!r}"
    )
