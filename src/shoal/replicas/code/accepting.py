"""`accept_batch`, which marks whether a backend's code takes lists."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from shoal.batching.handlers.items_or_lists import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound="Callable[..., Any]")


@overload
def accept_batch(code: C, /) -> C: ...
@overload
def accept_batch(code: bool, /) -> Callable[[C], C]: ...
def accept_batch(code: Any, /) -> Any:
    """Marks a function, a method, or a class as code that takes lists, and returns it.

    It is needed only without annotations: ``def f(items: list[T]) -> list[R]`` is known to take
    lists. ``@accept_batch(False)`` marks code that takes one item at a time, where that item is a
    list.

    Args:
        code: A function, a method or a class; of a class its ``__call__`` is marked.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(code, bool):
        return partial(_marked, accepts=code)
    return _marked(code, accepts=True)


def _marked(code: C, *, accepts: bool) -> C:
    given: Any = code
    marked: Any = given.__call__ if isinstance(given, type) else given
    try:
        setattr(marked, MARK, accepts)
    except AttributeError:
        raise TypeError(
            f"accept_batch() marks a function, a method or a class, not {code!r}"
        ) from None
    return code
