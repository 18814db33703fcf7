"""Whether a backend's code takes lists: `accept_batch`, or what its annotations say."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from shoal.batching.signature import annotations_of

C = TypeVar("C", bound="Callable[..., Any]")

_MARK: Final = "__shoal_accept_batch__"


def accept_batch(code: C) -> C:
    """Marks a function, a method, or a class as code that takes lists, and gives it back.

    It is needed only where no annotation says so: ``def f(items: list[T]) -> list[R]`` takes lists.

    Args:
        code: A function or a method; of a class the ``__call__`` is marked.
    """
    given: Any = code
    marked: Any = given.__call__ if isinstance(given, type) else given
    try:
        setattr(marked, _MARK, True)
    except AttributeError:
        raise TypeError(
            f"accept_batch() marks a function, a method or a class, not {code!r}"
        ) from None
    return code


def takes_lists(function: Callable[..., Any]) -> bool:
    """Says whether a function takes lists: it is marked, or all its annotations are of lists."""
    if getattr(function, _MARK, False) or getattr(type(function).__call__, _MARK, False):
        return True
    annotations = annotations_of(function)
    return bool(annotations) and all(map(_is_list, annotations))


def _is_list(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return (
        isinstance(origin, type)
        and issubclass(origin, Sequence)
        and not issubclass(origin, str | bytes | bytearray | tuple)
    )
