"""The batcher of one method of a backend, which runs in its own task.

A batch is one call of one method, so each method that is called has its own batcher. Nearly always
that is ``__call__`` alone. The batchers share the backend's replicas.

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
    from shoal.serving.config.converters import Converters
    from shoal.serving.replica_set.pool import Pool

T = TypeVar("T")

logger: Final = logging.getLogger("shoal.serving")


class MethodBatcher:
    """The batcher of one method.

    Attributes:
        method: The method.
        batcher: The batcher itself.
        streams: Whether its calls are answered by streams.
        converters: The functions between HTTP and the method; None for the usual ways.
        check_arrays: Checks the arrays in an item; None if no parameter has an array type.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        handler: Handler,
        pool: Pool,
        options: dict[str, Any],
        converters: Converters | None,
        observers: Observers,
    ) -> None:
        self.method = method
        self.converters = converters
        self._handler = handler
        self._room = PoolRoom(pool, 1)
        self.batcher: Batcher[Any] = Batcher(
            handler, name=name, room=self._room, observers=observers, **options
        )
        self._fit_room()
        self.streams = self.batcher.streams
        self.check_arrays = array_check(self.batcher.signature)
        self._made: dict[Any, Any] = {}

    def made_by(self, make: Callable[[Signature], T]) -> T:
        """Returns what a function makes of the signature of a call with one item, once for all.

        Args:
            make: The function; not a new one each time, since what it made is kept under it.

        Raises:
            TypeError: Only the backend's ``decode`` makes items, and it may check who calls.
        """
        made: T | None = self._made.get(make)
        if made is None:
            if self.decodes:
                raise TypeError("its items are made by its decode function, from HTTP requests")
            made = self._made[make] = make(self.batcher.signature)
        return made

    def made_of_results(self, make: Callable[[Signature], T]) -> T:
        """Returns what a function makes of the signature without parameters, once for all."""
        made: T | None = self._made.get((make,))
        if made is None:
            signature = self.batcher.signature.replace(parameters=())
            made = self._made[make,] = make(signature)
        return made

    def convert_with(self, converters: Converters | None) -> None:
        """Changes the functions between HTTP and the method."""
        self.converters = converters
        self._made = {}

    @property
    def decodes(self) -> bool:
        """Whether a function of the backend makes the items of HTTP requests."""
        return self.converters is not None and self.converters.decode is not None

    def check(self, options: dict[str, Any]) -> None:
        """Checks options before they are applied.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option does not fit the code or the other options, or can't be changed.
        """
        checked_options(options, self._handler)
        if self.batcher.is_alive:
            refuse_change(self.batcher.options.open, options["open"])

    def configure(self, options: dict[str, Any]) -> None:
        """Changes options of the batcher; `Batcher.configure` says what it raises."""
        self.batcher.configure(**options)
        self._fit_room()

    def _fit_room(self) -> None:
        # An open batch begins with one request.
        is_closed = self.batcher.fill == "closed"
        self._room.size = self.batcher.options.max_batch_size if is_closed else 1

    def forget_results(self) -> None:
        """Empties the cache of results, which other code or another user config has made."""
        if self.batcher.is_alive:
            self.batcher.find().forget_results()

    async def run(self, enter: Callable[[], object], *, task_status: TaskStatus[None]) -> None:
        """Runs the batcher until it is closed.

        Args:
            enter: Called first, in the context in which the code may run.
            task_status: Signalled when calls are accepted.
        """
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
        """Closes the batcher, once its queued requests have been answered.

        Args:
            at_once: Whether to fail the queued requests instead.
        """
        if at_once:
            self.batcher.configure(graceful_shutdown_timeout_s=0)
        await self.batcher.aclose()

    def _log_failure(self, error: BaseException) -> None:
        logger.error("the batcher of %s broke", self.batcher.name, exc_info=error)


def ends_the_server(error: BaseException) -> bool:
    """Returns whether an error must also end the tasks around the batcher that raised it."""
    if isinstance(error, BaseExceptionGroup):
        return False  # its members are checked one by one
    wanted = (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())
    return isinstance(error, wanted)
