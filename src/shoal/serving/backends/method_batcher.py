"""The batcher of one method of a backend, which runs in its own task.

A batch is one call of one method, so each method that is called has its own batcher. Nearly always
that is only ``__call__``. The batchers share the backend's replicas.

A batcher that breaks (because a policy of the user's raises, for example) must not end the others,
so its error stops here and is logged. Its callers have failed by then, and later calls fail with
the error as their cause.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from shoal.batching.batcher import Batcher
from shoal.batching.handlers.array_types import array_check
from shoal.batching.options.checks import checked_options
from shoal.batching.options.opens import refuse_change
from shoal.serving.replica_set.pool import PoolRoom

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

    from anyio.abc import TaskStatus

    from shoal.batching.handlers.handler import Handler
    from shoal.core.events import Observers
    from shoal.replicas.code.description import Method
    from shoal.serving.replica_set.pool import Pool

T = TypeVar("T")

logger: Final = logging.getLogger("shoal.serving")


class MethodBatcher:
    def __init__(
        self,
        name: str,
        method: Method,
        handler: Handler,
        pool: Pool,
        options: dict[str, Any],
        observers: Observers,
    ) -> None:
        self.method = method
        self._handler = handler
        self._room = PoolRoom(pool, 1)
        self.batcher: Batcher[Any] = Batcher(
            handler, name=name, room=self._room, observers=observers, **options
        )
        self._fit_room()
        self.streams = self.batcher.streams
        # None if no parameter has an array type
        self.check_arrays = array_check(self.batcher.signature)
        self._made: dict[Any, Any] = {}

    def made_by(self, make: Callable[[Signature], T]) -> T:
        """Returns what `make` returns for the signature of a call, cached by `make`."""
        made: T | None = self._made.get(make)
        if made is None:
            made = self._made[make] = make(self.batcher.signature)
        return made

    def check(self, options: dict[str, Any]) -> None:
        """Raises `TypeError` or `ValueError` for options that can't be applied."""
        checked_options(options, self._handler)
        if self.batcher.is_alive:
            refuse_change(self.batcher.options.open, options["open"])

    def configure(self, options: dict[str, Any]) -> None:
        self.batcher.configure(**options)
        self._fit_room()

    def _fit_room(self) -> None:
        # An open batch begins with one request.
        is_closed = self.batcher.fill == "closed"
        self._room.size = self.batcher.options.max_batch_size if is_closed else 1

    def forget_results(self) -> None:
        if self.batcher.is_alive:
            self.batcher.find().forget_results()

    async def run(self, enter: Callable[[], object], *, task_status: TaskStatus[None]) -> None:
        enter()
        is_open = False

        def on_open() -> None:
            nonlocal is_open
            is_open = True
            task_status.started()

        try:
            await self.batcher.serve(on_open)
        except Exception as error:
            if not is_open:
                raise
            self._log_failure(error)
        except BaseExceptionGroup as group:
            passed_on, broken = group.split(ends_the_server)
            if broken is not None:
                self._log_failure(broken)
            if passed_on is not None:
                raise passed_on from None

    async def close(self, *, at_once: bool) -> None:
        """Closes the batcher, after its queued requests or by failing them."""
        if at_once:
            self.batcher.configure(graceful_shutdown_timeout_s=0)
        await self.batcher.aclose()

    def _log_failure(self, error: BaseException) -> None:
        logger.error("the batcher of %s broke", self.batcher.name, exc_info=error)


def ends_the_server(error: BaseException) -> bool:
    """Whether an error must also end the tasks around the batcher that raised it."""
    if isinstance(error, BaseExceptionGroup):
        return False  # its members are checked one by one
    wanted = (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())
    return isinstance(error, wanted)
