"""How another thread has something done in an event loop, without waiting for that."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable


def run_soon_in_this_loop() -> Callable[[Callable[[], object]], None]:
    """Returns what has a function called in the loop that runs the caller.

    It may be called in any thread; once the loop has ended it does nothing.
    """
    token: Any = anyio.lowlevel.current_token()
    native: Any = getattr(token, "native_token", token)
    soon = getattr(native, "run_sync_soon", None) or native.call_soon_threadsafe

    def run_soon(function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            soon(function)

    return run_soon
