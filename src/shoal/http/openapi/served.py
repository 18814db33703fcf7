"""The facts about a served endpoint that are documented for its callers."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.asgi.option_checks import check_known, checked_requirements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from inspect import Signature

    from shoal.asgi.http_options import HttpOptions

# The limit of an endpoint's description, in characters.
LONGEST_TEXT: Final = 8192


@dataclass(frozen=True, kw_only=True)
class Documented:
    # None for the application's.
    security: Sequence[Mapping[str, Sequence[str]]] | None = None
    # Statuses of the code's HTTPExceptions, with their meanings.
    responses: Mapping[int, str] = field(default_factory=dict[int, str])


def documented_as(
    security: Any, responses: Mapping[int, str] | None, options: HttpOptions
) -> Documented:
    """Checks a program's documentation of an endpoint."""
    requirements = None
    if security is not None:
        requirements = checked_requirements("security", security)
        check_known(requirements, options.security_schemes)
    meanings: Mapping[Any, Any] = {} if responses is None else responses
    for status, meaning in meanings.items():
        if type(status) is not int or not isinstance(meaning, str):
            raise TypeError(
                f'responses maps statuses to texts, such as {{404: "No such user"}}, '
                f"not {responses!r}"
            )
        if not 300 <= status <= 599:
            raise ValueError(f"responses: a status is from 300 to 599, not {status}")
    return Documented(security=requirements, responses=dict(meanings))


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedEndpoint:
    name: str
    path: str | None
    methods: tuple[str, ...]
    # Of a call with one item; None if the code is not known yet.
    signature: Signature | None = None
    streams: bool = False
    priority_levels: int = 1
    text: str = ""
    documented: Documented
    decodes: bool = False
    encodes: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """Two endpoints with equal facts are described in the same way."""
        # Not the signature itself: comparing those compares the code's defaults.
        return {**vars(self), "signature": id(self.signature)}


def text_of(target: Any) -> str:
    """Returns the documentation of a backend's code, without importing it."""
    if isinstance(target, str):
        module, _, name = target.partition(":")
        target = sys.modules.get(module)
        for part in name.split("."):
            target = getattr(target, part, None)
    while isinstance(target, partial):
        target = target.func  # pyright: ignore[reportUnknownMemberType]
    if target is None:
        return ""
    text: Any = getattr(target, "__doc__", None)
    if not inspect.isroutine(target):
        cls: Any = target if inspect.isclass(target) else type(target)  # pyright: ignore[reportUnknownVariableType]
        call = inspect.getattr_static(cls, "__call__", None)
        text = getattr(call, "__doc__", None) or getattr(cls, "__doc__", None)
    return inspect.cleandoc(text)[:LONGEST_TEXT] if isinstance(text, str) else ""
