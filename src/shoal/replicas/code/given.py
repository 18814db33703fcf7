"""Parameters of a backend's code that are given to it, and are no part of its calls.

They are handles of endpoints: such a parameter is annotated with a class that is marked to say how
a handle is made. The endpoint has the parameter's name, or another: ``Annotated[Handle, "old"]``.

A handle is made where the code runs, so that the code can be an import path as well. It is filled
in as by `functools.partial`, so all that reads the code's parameters leaves it out.
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
    """Marks a class, as a decorator, as the annotation of parameters that are given handles.

    Args:
        make: Makes the handle of an endpoint of that name; it is called where the code runs.
    """

    def mark(cls: C) -> C:
        setattr(cls, _MARK, make)
        return cls

    return mark


def given_names(code: Any) -> dict[str, str]:
    """Returns the names of the endpoints whose handles code is given, by its parameters.

    Args:
        code: A function or a class; of a class those of its constructor.

    Raises:
        TypeError: An annotation gives more than one name, or one that is no text; or that of a
            function only contains a handle, as ``list[Handle]`` does.
    """
    return {name: named for name, (named, _) in _given(code).items()}


def given_arguments(code: Any) -> Mapping[str, Any]:
    """Makes the handles that code is given, by its parameters; see `given_names`."""
    return {name: make(named) for name, (named, make) in _given(code).items()}


def with_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the handles that it is given filled in."""
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
            if not is_class:  # whose init arguments may be anything that has handles
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
    """Returns what makes the handle of an annotation; None if it is of no marked class."""
    return vars(annotation).get(_MARK) if inspect.isclass(annotation) else None


def _refuse_inner(code: Any, parameter: inspect.Parameter) -> None:
    """Refuses an annotation with a marked class inside of it, such as ``Handle | None``."""
    inner = [*typing.get_args(parameter.annotation)]
    while inner:
        one = inner.pop()
        if _maker(one) is not None:
            raise TypeError(
                f"the annotation of {parameter.name!r} of {code!r} must be {one.__name__} itself, "
                f'or Annotated[{one.__name__}, "name"], not {parameter.annotation!r}'
            )
        inner += typing.get_args(one)
