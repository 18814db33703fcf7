"""Holding code of the user's to `Exception`s in a task: a block for `held`'s purpose."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.batching.failures.exceptions import ends_the_program, goes_on, is_of_a_signal, own_copy
from shoal.batching.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def _of_the_code(error: BaseException) -> Exception:
    return own_copy(error, "the code")


@contextmanager
def holding(told: Callable[[BaseException], Exception] = _of_the_code) -> Generator[None]:
    """Code of the user's may run in this block, of a task's function marked with `holds_ctrl_c`.

    Args:
        told: Makes an `Exception` of what it raised that is none.

    Raises:
        HandlerFailed: It raised what is no `Exception`; or what `told` has made of that.
        Exception: What it raised.

    Cancellation: goes on.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_of_a_signal(error):
            raise
        if not ends_the_program(error) and goes_on(error, parking_of_this_loop()):
            raise
        raise told(error) from error
