"""How another thread has something done in an event loop, without waiting for that."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable


class Soon(Protocol):
    """Has a function called in the event loop, soon, from any thread."""

    def __call__(self, function: Callable[..., object], *args: Any) -> None: ...


def into_this_loop() -> tuple[str, Soon]:
    """Returns the name of the event loop that runs the caller, and what reaches it from threads.

    The latter raises a RuntimeError when the loop is closed.
    """
    native: Any = anyio.lowlevel.current_token().native_token
    if hasattr(native, "run_sync_soon"):
        return "trio", native.run_sync_soon
    return "asyncio", native.call_soon_threadsafe


def loop_of_caller() -> tuple[str, Soon]:
    """Returns the name of the event loop that runs the caller, and what reaches it from threads.

    What comes when the loop is closed is dropped.
    """
    name, hand_over = into_this_loop()

    def soon(function: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):
            hand_over(function, *args)

    return name, soon
