"""Time that moves only when every task waits, for both event loops.

trio has a clock for that. asyncio has none, so here is a loop whose selector, where it would block
until a timer, moves the loop's clock to that timer instead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import trio
import trio.testing

if TYPE_CHECKING:
    import selectors
    from collections.abc import Awaitable, Callable, Sequence


class _JumpingSelector:
    """A selector that, where it would block until a timer, moves the loop's clock there instead."""

    def __init__(self, selector: selectors.BaseSelector, loop: VirtualTimeLoop) -> None:
        self._selector = selector
        self._loop = loop

    def select(self, timeout: float | None = None) -> Sequence[Any]:
        self._loop.turns += 1
        ready = self._selector.select(0 if timeout is not None else None)
        if not ready and timeout:
            self._loop.virtual_now += timeout
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps to the next timer whenever every task waits.

    Attributes:
        virtual_now: The loop's time, in seconds.
        turns: How many turns the loop has taken.
    """

    def __init__(self) -> None:
        self.virtual_now = 0.0
        self.turns = 0
        super().__init__()
        self._selector = _JumpingSelector(self._selector, self)

    def time(self) -> float:
        return self.virtual_now


def virtual(backend: str) -> dict[str, Any]:
    """Returns the options with which `anyio.run` runs a backend in virtual time."""
    if backend == "trio":
        return {"clock": trio.testing.MockClock(autojump_threshold=0)}
    return {"loop_factory": VirtualTimeLoop}


def run_virtually(backend: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Runs an async function in virtual time, as `anyio.run` would.

    On trio it is trio's own ``run``: anyio's takes no clock there before its version 4.14.
    """
    if backend == "trio":
        return trio.run(function, *args, **virtual(backend))
    return anyio.run(function, *args, backend=backend, backend_options=virtual(backend))


async def settle() -> None:
    """Waits until no other task can run, without letting time pass."""
    if trio.lowlevel.in_trio_task():
        await trio.testing.wait_all_tasks_blocked()
        return
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            return
