"""Holding code of the user's to `Exception`s, where what else it raises would end its neighbours.

A function that runs such code is marked with `holds_ctrl_c`, so that what the person at the
terminal wants is not taken for the code's.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.batching.failures import ends_the_program, goes_on, own_copy
from shoal.batching.parking import Parking, holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

F = TypeVar("F", bound="Callable[..., Any]")


def held(function: F) -> F:
    """Returns the same plain function, which raises nothing but an `Exception`."""

    @functools.wraps(function, updated=())
    @holds_ctrl_c
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            raise own_copy(error) from error

    return cast("F", call)


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


@holds_ctrl_c
def shown(value: object) -> str:
    """Returns the `repr` of an object of the user's, or its type's name if it has none."""
    try:
        return repr(value)
    except BaseException:  # whatever a foreign class does
        return f"<{type(value).__name__}>"
