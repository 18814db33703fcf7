"""Limits user code to raising `Exception`s, where others would end unrelated requests too.

A function that runs such code is marked with `holds_ctrl_c`, so that a Ctrl-C at the terminal is
not mistaken for an error of the code.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.failures.exceptions import ends_the_program, is_of_a_signal, must_propagate, own_copy
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[..., Any]")


def held(function: F, name: str = "the code") -> F:
    """Wraps a plain function so that it raises only `Exception`s."""

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
def shown(value: object, convert: Callable[[object], str] = repr) -> str:
    """Returns the `repr` or `str` of a user's object, or its type's name if that fails."""
    try:
        return convert(value)
    except BaseException as error:  # user code may raise anything
        if is_of_a_signal(error):
            raise
        return f"<{type(value).__name__}>"


class holding:  # noqa: N801 - used as a function
    """Runs user code in a block, so that it raises only `Exception`s. Cancellation propagates."""

    # The task's function must be marked with `holds_ctrl_c`. `convert` converts other exceptions.

    __slots__ = ("_convert",)

    def __init__(self, convert: Callable[[BaseException], Exception] | None = None) -> None:
        self._convert = convert or partial(own_copy, name="the code")

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, Exception) or is_of_a_signal(error):
            return
        if not ends_the_program(error) and must_propagate(error, parking_of_this_loop()):
            return
        raise self._convert(error) from error
