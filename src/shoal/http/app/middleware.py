"""Middleware around an application, and the application inside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from starlette.types import ASGIApp

T = TypeVar("T")

_DEEPEST: Final = 100


def check_middleware(name: str, given: Any) -> None:
    """Checks a list of middleware.

    Raises:
        TypeError: It is none.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a list, not {given!r}")
    for one in list[Any](given):  # pyright: ignore[reportUnknownArgumentType]
        if not callable(getattr(one, "cls", one)):
            raise TypeError(
                f"{name} are Starlette's, such as Middleware(CORSMiddleware, allow_origins=[...]), "
                f"or functions of an application: {one!r}"
            )


def with_middleware(given: Sequence[Callable[[ASGIApp], ASGIApp] | Any], app: ASGIApp) -> ASGIApp:
    """Puts middleware around an application, the first outermost.

    Args:
        given: Starlette's records, or functions that take an application and give another.
        app: The application.
    """
    listed: list[Any] = list(given)
    for one in reversed(listed):
        cls = getattr(one, "cls", None)
        make = one if cls is None else partial(cls, *one.args, **one.kwargs)
        app = cast("ASGIApp", make(app))
    return app


def within(app: Any, kind: type[T]) -> T | None:
    """Finds the application of a kind that middleware was put around.

    What wraps an application keeps it as its attribute ``app``, as Starlette's middleware does.

    Args:
        app: An application, with or without middleware around it.
        kind: What to look for.
    """
    for _ in range(_DEEPEST):
        if app is None or isinstance(app, kind):
            return app
        app = getattr(app, "app", None)
    return None
