"""Middleware: putting it around an application, and finding that application again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp

T = TypeVar("T")

_DEEPEST: Final = 100


def with_middleware(given: Sequence[Callable[[ASGIApp], ASGIApp] | Any], app: ASGIApp) -> ASGIApp:
    """Puts Starlette's `Middleware`, or functions, around an application, the first outermost."""
    listed: list[Any] = list(given)
    for one in reversed(listed):
        cls = getattr(one, "cls", None)
        make = one if cls is None else partial(cls, *one.args, **one.kwargs)
        app = cast("ASGIApp", make(app))
    return app


def within(app: Any, kind: type[T]) -> T | None:
    """Returns the application of a type inside its middleware; None if there is none."""
    # Middleware must keep the application that it wraps as its attribute `app`, as Starlette's do.
    for _ in range(_DEEPEST):
        if app is None or isinstance(app, kind):
            return app
        app = getattr(app, "app", None)
    return None
