"""A block that limits user code in a task to raising `Exception`s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.failures.exceptions import ends_the_program, goes_on, is_of_a_signal, own_copy
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_the_code(error: BaseException) -> Exception:
    return own_copy(error, "the code")


class holding:  # noqa: N801 - used as a function
    """Runs user code in a block, so that it raises only `Exception`s. Cancellation propagates.

    The task's function must be marked with `holds_ctrl_c`. `told` converts other exceptions.
    """

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[BaseException], Exception] = _of_the_code) -> None:
        self._told = told

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, Exception) or is_of_a_signal(error):
            return
        if not ends_the_program(error) and goes_on(error, parking_of_this_loop()):
            return
        raise self._told(error) from error
