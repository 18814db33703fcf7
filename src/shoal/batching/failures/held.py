"""Holding code of the user's to `Exception`s, where what else it raises would end its neighbours.

A function that runs such code is marked with `holds_ctrl_c`, so that what the person at the
terminal wants is not taken for the code's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.batching.failures.exceptions import is_of_a_signal, own_copy
from shoal.batching.loops.event_loop import holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def held(function: F, name: str = "the code") -> F:
    """Returns the same plain function, which raises nothing but an `Exception`.

    Args:
        function: The function.
        name: What to call it in words, for the text of that.
    """

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(function, name, args, kwargs)

    return cast("F", call)


@holds_ctrl_c
def _call(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        if is_of_a_signal(error):
            raise
        raise own_copy(error, name) from error


@holds_ctrl_c
def shown(value: object) -> str:
    """Returns the `repr` of an object of the user's, or its type's name if it has none."""
    try:
        return repr(value)
    except BaseException as error:  # whatever a foreign class does
        if is_of_a_signal(error):
            raise
        return f"<{type(value).__name__}>"
