"""Calls in worker threads whose number something else limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Unlimited(anyio.CapacityLimiter):
    """Lets any number of threads run, without a pass of the event loop for each."""

    # `CapacityLimiter(math.inf)` has a checkpoint: the thread would start a pass of the event loop
    # later, after all other tasks that are ready. On trio a task that wakes others and then calls
    # `anyio.to_thread.run_sync` with this lets them run beside its thread. On asyncio they still
    # run before it, since anyio has another checkpoint there. Waiting for the thread is a
    # checkpoint, and cancellation is noticed before it starts. It belongs to no event loop.

    def __new__(cls) -> Self:
        return object.__new__(cls)

    # What asyncio uses.

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass

    # What trio uses.

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        pass

    def release_on_behalf_of(self, borrower: object) -> None:
        pass


UNLIMITED: Final = Unlimited()


async def in_thread(function: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
    """Calls a function of any kind of errors in a thread, which then refers to nothing of it."""
    # An idle thread may keep its last call and that call's context alive, so the call is an empty
    # box. Errors are returned: trio rejects an awaitable that a thread returns, asyncio drops a
    # coroutine when a GeneratorExit is thrown into it, and its futures refuse other classes, too.
    box = [function]
    del function

    def call() -> tuple[list[T], list[BaseException]]:
        try:
            return [box.pop()()], []
        except BaseException as error:
            return [], [error]

    results, errors = await anyio.to_thread.run_sync(
        call, abandon_on_cancel=abandon_on_cancel, limiter=UNLIMITED
    )
    if errors:
        raise errors.pop()  # not from a variable: its traceback holds this frame
    return results.pop()
