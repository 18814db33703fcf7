"""Parameters of a backend's code that Shoal fills in with handles of endpoints.

Such a parameter is annotated with a class that `given_by` marks. The endpoint has the parameter's
name, or another one: ``Annotated[Handle, "old"]``. Callers don't pass these parameters.

A handle is made where the code runs, so the code can be an import path as well. It is filled in as
with `functools.partial`, so functions that read the code's parameters leave it out.
"""

from __future__ import annotations

import inspect
import typing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shoal.batching.handlers.binding import signature_of_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

C = TypeVar("C", bound=type)

_MARK: Final = "__shoal_given__"


def given_by(make: Callable[[str], Any]) -> Callable[[C], C]:
    """Marks a class as the annotation of handles; `make` makes one, where the code runs."""

    def mark(cls: C) -> C:
        setattr(cls, _MARK, make)
        return cls

    return mark


def given_names(code: Any) -> dict[str, str]:
    """Maps the handle parameters of a function, or of a class's constructor, to endpoints."""
    return {name: named for name, (named, _) in _given(code).items()}


def given_arguments(code: Any) -> Mapping[str, Any]:
    """Makes the handles for the parameters of a function, or of a class's constructor."""
    return {name: make(named) for name, (named, make) in _given(code).items()}


def with_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with its handles filled in."""
    arguments = given_arguments(function)
    return partial(function, **arguments) if arguments else function


def _given(code: Any) -> dict[str, tuple[str, Callable[[str], Any]]]:
    is_class = inspect.isclass(code)
    function: Any = partial(code.__init__, None) if is_class else code
    try:
        signature = signature_of_call(function)
    except (TypeError, ValueError):  # written in C
        return {}
    found: dict[str, tuple[str, Callable[[str], Any]]] = {}
    for parameter in signature.parameters.values():
        annotation: Any = parameter.annotation
        names: tuple[Any, ...] = getattr(annotation, "__metadata__", ())
        kind = typing.get_args(annotation)[0] if names else annotation
        make = _maker(kind)
        if make is None:
            if not is_class:  # init arguments may contain handles in any form
                _refuse_inner(code, parameter)
            continue
        if len(names) > 1 or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"the annotation of {parameter.name!r} of {code!r} must give one name, as in "
                f'Annotated[{kind.__name__}, "name"], not {names!r}'
            )
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{parameter.name!r} of {code!r} can't be given by its name")
        found[parameter.name] = (names or (parameter.name,))[0], make
    return found


def _maker(annotation: Any) -> Callable[[str], Any] | None:
    return vars(annotation).get(_MARK) if inspect.isclass(annotation) else None


def _refuse_inner(code: Any, parameter: inspect.Parameter) -> None:
    """Refuses an annotation with a marked class inside it, such as ``Handle | None``."""
    inner = [*typing.get_args(parameter.annotation)]
    while inner:
        one = inner.pop()
        if _maker(one) is not None:
            raise TypeError(
                f"the annotation of {parameter.name!r} of {code!r} must be {one.__name__} itself, "
                f'or Annotated[{one.__name__}, "name"], not {parameter.annotation!r}'
            )
        inner += typing.get_args(one)
