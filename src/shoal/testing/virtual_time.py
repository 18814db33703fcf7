"""Virtual time for both event loops: the clock moves only when every task waits.

Code that batches has many waits: windows, deadlines, timeouts. In virtual time a test of an hour's
wait takes no time, ends at the exact second, and does not depend on the load of the machine:
whenever every task waits, the clock jumps to the next deadline.

trio has such a clock. asyncio does not, so this module has an event loop with a selector that moves
the loop's clock to the next timer instead of blocking until then. Patching ``time.monotonic`` would
also affect code that has nothing to do with the test.

The clock does not wait for threads, processes and sockets. Tests with those need the real clock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, TypeVarTuple, Unpack

import anyio
import trio
import trio.testing

if TYPE_CHECKING:
    import selectors
    from collections.abc import Awaitable, Callable

    Args = TypeVarTuple("Args")

R = TypeVar("R")

BackendName: TypeAlias = Literal["trio", "asyncio"]

# On asyncio, two tasks that settle at the same time see each other's turns, and event loops other
# than asyncio's own do not expose ready callbacks: in these cases the wait ends after this number.
_MORE_TURNS_THAN_ANY_HAND_OFF_TAKES = 1000


class _JumpingSelector:
    """A selector that moves the loop's clock to the next timer instead of blocking until then."""

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
    """An asyncio loop whose time jumps to the next timer whenever every task waits."""

    _selector: Any

    def __init__(self) -> None:
        self.virtual_now = 0.0
        self.turns = 0
        super().__init__()
        self._selector = _JumpingSelector(self._selector, self)

    def time(self) -> float:
        return self.virtual_now


def virtual_backend(backend: BackendName) -> tuple[str, dict[str, Any]]:
    """Returns an event loop in virtual time, in the form that anyio's pytest plugin expects.

    If a fixture named ``anyio_backend`` returns it, every test that is marked ``anyio`` runs in
    virtual time. Each call creates a new clock.

    Args:
        backend: ``"trio"`` or ``"asyncio"``.

    Returns:
        The backend's name and its options.

    Raises:
        ValueError: There is no such backend.
    """
    if backend == "trio":
        return backend, {"clock": trio.testing.MockClock(autojump_threshold=0)}
    if backend == "asyncio":
        return backend, {"loop_factory": VirtualTimeLoop}
    raise ValueError(f"backend must be 'trio' or 'asyncio', not {backend!r}")


def run_virtually(
    function: Callable[[Unpack[Args]], Awaitable[R]], *args: *Args, backend: BackendName = "trio"
) -> R:
    """Runs an async function in virtual time, as `anyio.run` runs it in real time.

    Args:
        function: The async function.
        *args: Its arguments.
        backend: ``"trio"`` or ``"asyncio"``.

    Returns:
        The function's result.
    """
    name, options = virtual_backend(backend)
    return anyio.run(function, *args, backend=name, backend_options=options)


async def settle() -> None:
    """Waits until every other task waits for something; no virtual time passes.

    Afterwards everything that can happen at this moment has happened, so a test may assert on it.
    It also works on the real clock, but does not wait for threads.

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
        if quiet_turns == 2:  # a timer set for now in one turn is ready in the next
            return
