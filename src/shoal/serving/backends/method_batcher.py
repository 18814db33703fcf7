"""One line of a backend: the batcher of one of its methods, kept open in a task of its own.

A batch is one call of one method, so each method that is called has a line; nearly always that is
``__call__`` alone. They share the backend's replicas.

A batcher that breaks (a rule of the user's that raises, say) must not end its neighbours, so it is
let go here: its callers have failed by then, and whoever calls it again is told why.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.batching.batcher import Batcher
from shoal.batching.options.checks import checked_options
from shoal.errors import BatcherClosed
from shoal.serving.replica_set.pool import PoolRoom

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

    from shoal.batching.calls.entry import Entry
    from shoal.batching.handlers.handler import Handler
    from shoal.replicas.code.description import Method
    from shoal.serving.replica_set.pool import Pool

logger: Final = logging.getLogger("shoal.serving")


class MethodBatcher:
    """The line of one method.

    Attributes:
        method: The method.
        batcher: Its batcher.
    """

    def __init__(
        self, name: str, method: Method, handler: Handler, pool: Pool, options: dict[str, Any]
    ) -> None:
        self.method = method
        self._handler = handler
        room = PoolRoom(pool, self._largest_batch)
        self.batcher: Batcher[Any] = Batcher(handler, name=name, room=room, **options)

    @property
    def streams(self) -> bool:
        """Whether its calls are answered by streams."""
        return self.batcher.streams

    def check(self, options: dict[str, Any]) -> None:
        """Checks options that are to be taken in, all of them.

        Raises:
            TypeError: One has the wrong type.
            ValueError: One does not fit the code, or the others.
        """
        checked_options(options, self._handler)

    def entry(self) -> Entry:
        """Returns where calls enter.

        Raises:
            NotOpen: This is not the event loop that it runs in.
            BatcherClosed: It broke; the cause says why.
        """
        failure = self.batcher.failure
        if failure is not None:
            raise BatcherClosed(f"{self.batcher.name} broke") from failure
        return self.batcher.find()

    def _largest_batch(self) -> int:
        """Returns how many requests a batch may begin with."""
        return self.batcher.options.max_batch_size if self.batcher.fill == "closed" else 1

    async def keep(self, enter: Callable[[], object], *, task_status: TaskStatus[None]) -> None:
        """Keeps the line open until it is closed.

        Args:
            enter: What is called first, in the context that the code may run in.
            task_status: Told when calls are taken.
        """
        enter()
        is_open = False

        class Opened:
            def started(self, _value: object = None) -> None:
                nonlocal is_open
                is_open = True
                task_status.started()

        try:
            await self.batcher.run(task_status=cast("Any", Opened()))
        except Exception as error:
            if not is_open:
                raise
            self._let_go(error)
        except BaseExceptionGroup as group:
            passing, broken = group.split(is_for_others)
            if broken is not None:
                self._let_go(broken)
            if passing is not None:
                raise passing from None

    async def close(self, *, at_once: bool) -> None:
        """Closes it, once what is in line has been answered.

        Args:
            at_once: Whether to fail that instead.
        """
        if at_once:
            self.batcher.configure(graceful_shutdown_timeout_s=0)
        await self.batcher.aclose()

    def _let_go(self, error: BaseException) -> None:
        logger.error("the batcher of %s broke", self.batcher.name, exc_info=error)


def is_for_others(error: BaseException) -> bool:
    """Says whether an error ends more than the batcher where it came up."""
    if isinstance(error, BaseExceptionGroup):
        return False  # its parts are asked
    wanted = (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())
    return isinstance(error, wanted)
