"""What can be known of a batcher while it runs, and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.batching.stack import stack_of

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.batching.handlers.handler import Handler
    from shoal.batching.session import Session
    from shoal.core.batch import Batch
    from shoal.core.counters import BatcherState, BatcherStatistics, Counters
    from shoal.core.options.options import BatchOptions


class Watchable:
    """The side of a batcher that tells about it.

    Attributes:
        name: What it is called in messages and metrics.
    """

    def __init__(
        self, name: str, handler: Handler, options: BatchOptions, counters: Counters
    ) -> None:
        self.name = name
        self._handler = handler
        self._options = options
        self._counters = counters
        self._session: Session | None = None
        self._closed_unopened = False

    @property
    def options(self) -> BatchOptions:
        """The options in force."""
        return self._options

    @property
    def signature(self) -> Signature:
        """The signature of the call of one item, with the types of one item."""
        return self._handler.binding.signature

    @property
    def fill(self) -> str:
        """When its batches are complete: ``"closed"``, ``"open"`` or ``"continuous"``."""
        return self._handler.fill

    @property
    def streams(self) -> bool:
        """Whether the handler is a generator function, so that calls are answered by streams."""
        return self._handler.streams

    @property
    def threaded(self) -> bool:
        """Whether the handler runs in worker threads, where it can't be interrupted."""
        return self._handler.threaded

    @property
    def is_alive(self) -> bool:
        """Whether calls are being served."""
        return self._state in ("open", "draining")

    @property
    def is_open(self) -> bool:
        """Whether calls are taken, and it has not been told to close."""
        return self._session is not None and not self._session.is_stopping

    @property
    def is_at_rest(self) -> bool:
        """Whether it has nothing in line, and its handler is not at work."""
        return self._session is None or self._session.is_at_rest

    def runs(self, batch: Batch) -> bool:
        """Says whether a batch is in its handler."""
        return self._session is not None and batch in self._session.slots.batches

    @property
    def _state(self) -> BatcherState:
        if self._session is None:
            return "closed" if self._closed_unopened else "new"
        return self._session.state

    @property
    def failure(self) -> BaseException | None:
        """What broke the batcher; None if nothing did."""
        return None if self._session is None else self._session.failure

    def running_since(self) -> list[float]:
        """Returns since when each batch in the handler has been there, on the loop's clock."""
        return [] if self._session is None else list(self._session.slots.batches.values())

    def stacks(self) -> list[str]:
        """Returns the stack of each slot's task as text; for finding out where one hangs."""
        coroutines = [] if self._session is None else self._session.slots.coroutines
        return [stack_of(coroutine) for coroutine in coroutines]

    def scheduling_capacity(self) -> float:
        """Returns how much more would start at once, as things are; TensorFlow's name for it.

        That is what idle slots and batches that are open have room for, less what is in line: in
        requests, or in cost where there is a ``batch_size_fn``. It is 0 where the batcher is not
        open or is closing, and infinity where ``max_concurrent_batches`` is None.
        """
        return 0 if self._session is None else self._session.scheduling_capacity

    def statistics(self) -> BatcherStatistics:
        """Returns what the batcher is doing and has done, as it is now."""
        if self._session is not None:
            return self._session.statistics()
        return self._counters.statistics(self.name, self._state, self._options, 0, 0, [])
