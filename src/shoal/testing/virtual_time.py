"""Time that moves only when every task waits, for both event loops.

Code that batches is full of waits: windows, deadlines, time-outs. In virtual time a test of an
hour's wait takes no time, ends at the exact second, and never depends on how busy the machine is:
whenever every task waits, the clock jumps to the next deadline.

trio has a clock for that. asyncio has none, so here is a loop whose selector, where it would block
until a timer, moves the loop's clock to that timer instead. To patch ``time.monotonic`` would reach
code that has nothing to do with the test.

The clock knows nothing of threads, processes and sockets: it runs ahead of them. Tests with those
belong on the real clock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import anyio
import trio
import trio.testing

if TYPE_CHECKING:
    import selectors
    from collections.abc import Awaitable, Callable
    from typing import TypeVarTuple, Unpack

    Args = TypeVarTuple("Args")

R = TypeVar("R")

BackendName: TypeAlias = Literal["trio", "asyncio"]

# On asyncio, two tasks that settle at once see each other's turns, and loops that are not asyncio's
# own do not show what is ready: there the wait ends by this number.
_MORE_TURNS_THAN_ANY_HAND_OFF_TAKES = 1000


class _JumpingSelector:
    """A selector that, where it would block until a timer, moves the loop's clock there instead."""

    def __init__(self, selector: selectors.BaseSelector, loop: VirtualTimeLoop) -> None:
        self._selector = selector
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
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

    _selector: Any

    def __init__(self) -> None:
        self.virtual_now = 0.0
        self.turns = 0
        super().__init__()
        self._selector = _JumpingSelector(self._selector, self)

    def time(self) -> float:
        """Returns the loop's time, in seconds."""
        return self.virtual_now


def virtual_backend(backend: BackendName) -> tuple[str, dict[str, Any]]:
    """Returns an event loop in virtual time, as anyio's pytest plugin takes it.

    Return it from a fixture called ``anyio_backend``, and every test that is marked ``anyio`` runs
    in virtual time. Its clock starts anew with each call.

    Args:
        backend: ``"trio"`` or ``"asyncio"``.

    Returns:
        The backend's name and its options.

    Raises:
        ValueError: It is no such backend.
    """
    if backend == "trio":
        return backend, {"clock": trio.testing.MockClock(autojump_threshold=0)}
    if backend == "asyncio":
        return backend, {"loop_factory": VirtualTimeLoop}
    raise ValueError(f"backend must be 'trio' or 'asyncio', not {backend!r}")


def run_virtually(
    function: Callable[[Unpack[Args]], Awaitable[R]],
    *args: *Args,
    backend: BackendName = "trio",
) -> R:
    """Runs an async function in virtual time, as `anyio.run` runs it in real time.

    Args:
        function: The async function.
        *args: What it is called with.
        backend: ``"trio"`` or ``"asyncio"``.

    Returns:
        What the function returned.
    """
    name, options = virtual_backend(backend)
    return anyio.run(function, *args, backend=name, backend_options=options)


async def settle() -> None:
    """Waits until every other task waits for something; no virtual time passes.

    After it, whatever can happen at this moment has happened, so a test may assert on it. It works
    on the real clock too, but does not wait for threads.

    Checkpoint: always.
    """
    if trio.lowlevel.in_trio_task():
        await trio.testing.wait_all_tasks_blocked()
        return
    loop = asyncio.get_running_loop()
    quiet_turns = 0
    for _ in range(_MORE_TURNS_THAN_ANY_HAND_OFF_TAKES):
        await asyncio.sleep(0)
        quiet_turns = 0 if getattr(loop, "_ready", True) else quiet_turns + 1
        if quiet_turns == 2:  # what a turn has timed for now is ready in the turn after it
            return
