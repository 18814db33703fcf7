"""A limiter for threads whose number something else limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import anyio

if TYPE_CHECKING:
    from types import TracebackType


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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        pass

    # What trio uses.

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        pass

    def release_on_behalf_of(self, borrower: object) -> None:
        pass


UNLIMITED: Final = Unlimited()
