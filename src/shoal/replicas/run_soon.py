"""Scheduling of calls in an event loop from other threads, without waiting for them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable


class Soon(Protocol):
    """Schedules a call of a function in the event loop; from any thread."""

    def __call__(self, function: Callable[..., object], *args: Any) -> None: ...


def into_this_loop() -> tuple[str, Soon]:
    """Returns the name of the caller's event loop, and a function that schedules calls in it.

    That function raises a RuntimeError when the loop is closed.
    """
    native: Any = anyio.lowlevel.current_token().native_token
    if hasattr(native, "run_sync_soon"):
        return "trio", native.run_sync_soon
    return "asyncio", native.call_soon_threadsafe


def loop_of_caller() -> tuple[str, Soon]:
    """Returns the name of the caller's event loop, and a function that schedules calls in it.

    Calls are dropped when the loop is closed.
    """
    name, hand_over = into_this_loop()

    def soon(function: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):
            hand_over(function, *args)

    return name, soon
