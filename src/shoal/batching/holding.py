"""Holding code of the user's to `Exception`s in a task: a block for `held`'s purpose."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.batching.failures import ends_the_program, goes_on, own_copy
from shoal.batching.parking import Parking

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def holding() -> Generator[None]:
    """Code of the user's may run in this block, of a task's function marked with `holds_ctrl_c`.

    Raises:
        HandlerFailed: It raised what is no `Exception`.
        Exception: What it raised.

    Cancellation: goes on.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if not ends_the_program(error) and goes_on(error, Parking.of_this_loop()):
            raise
        raise own_copy(error) from error
