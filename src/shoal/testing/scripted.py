"""Handlers that a test plays by hand.

A test of code that batches wants to see what came together, decide when and how it is answered, and
look at what the callers make of it. A handler written for each such test needs events, lists and
care; these two serve all of them. The test takes each batch from the handler, and the handler waits
until the test has answered it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from shoal.testing.script import Arrivals, Script
from shoal.testing.virtual_time import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from shoal.batching.calls.result_types import Results, Slot
    from shoal.core.request import Request

T = TypeVar("T")
R = TypeVar("R")
B = TypeVar("B")


class _Scripted(Generic[T]):
    """A batch that a scripted handler was called for."""

    def __init__(self, items: list[T], script: Script) -> None:
        self.items = items
        self.requests: Sequence[Request] = script.batch.requests
        self.reason = script.batch.reason
        self._script = script

    @property
    def cancelled(self) -> bool:
        """Whether the handler was cancelled or closed before it had ended as the test says.

        So it is when all callers have left, when the handler's time was up, and when the batcher
        did not wait for it any longer. A batch that a test has seen cancelled needs no answer.
        """
        return self._script.was_cancelled()

    def fail(self, error: Exception) -> None:
        """Makes the handler raise."""
        self._script.say(error, last=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} items={self.items!r:.200}>"


class ScriptedBatch(_Scripted[T], Generic[T, R]):
    """A batch that waits for the test to answer it.

    Attributes:
        items: What the handler was given.
        requests: The requests that the items came with: their metadata, their deadlines.
        reason: Why the batch was cut.
    """

    def answer(self, results: Results[R]) -> None:
        """Makes the handler return.

        Args:
            results: One for each item, in their order; an exception in a place fails its caller
                alone. They are handed on as they are, so they may as well be wrong.
        """
        self._script.say((results,), last=True)

    def answer_each(self, function: Callable[[T], R]) -> None:
        """Makes the handler return what a function gives back for each item."""
        self.answer([function(item) for item in self.items])


class ScriptedSteps(_Scripted[T], Generic[T, R]):
    """A batch of streams that waits for the test to make its steps.

    Attributes:
        items: What the handler was given.
        requests: The requests that the items came with: their metadata, their deadlines.
        reason: Why the batch was cut.
        made: How many steps the handler has made.
    """

    made = 0

    def step(self, slots: Results[Slot[R]]) -> None:
        """Makes the handler yield once.

        Steps are made in order, each when the batcher asks for it: not while a reader that is slow
        holds the batch back.

        Args:
            slots: One for each item, in their order: the stream's next item, `shoal.END`,
                `shoal.SKIP`, or an exception that fails this stream alone.
        """
        self._script.say((slots,), last=False)

    def end(self) -> None:
        """Makes the handler end, and with it all streams that are still open."""
        self._script.say(None, last=True)


class _ScriptedHandler(Generic[B]):
    """What both kinds have: the batches, and how a test gets at them."""

    def __init__(self, *, patience_s: float = 60.0) -> None:
        self._patience_s = patience_s
        self._arrivals = Arrivals[B](patience_s)

    @property
    def batches(self) -> Sequence[B]:
        """All batches that the handler was called for, in order."""
        return self._arrivals.batches

    async def next_batch(self) -> B:
        """Waits for the next batch that the handler is called for.

        Returns:
            The batch; the handler waits until the test has answered it.

        Raises:
            AssertionError: None came within `patience_s`.

        Checkpoint: always.
        """
        return await self._arrivals.next()

    async def no_batch(self) -> None:
        """Waits until every other task waits, and asserts that no batch is there to be taken.

        Raises:
            AssertionError: A batch is there.

        Checkpoint: always.
        """
        await settle()
        if untaken := self._arrivals.untaken():
            raise AssertionError(f"no batch should be there, but {untaken[0]!r} is")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Asserts that every batch was answered that somebody waited for."""
        forgotten = self._arrivals.forgotten()
        if forgotten and exc is None:
            raise AssertionError(f"the test did not answer {forgotten}")


class ScriptedHandler(_ScriptedHandler[ScriptedBatch[T, R]], Generic[T, R]):
    """An async handler whose batches the test answers by hand.

    As a context manager it asserts, when its block is left, that every batch was answered, or seen
    to be cancelled, or that nobody waited for it any more.

    Args:
        patience_s: After how many seconds a wait ends in an `AssertionError`: the test's for a
            batch, and a batch's for its answer.
    """

    async def __call__(self, items: list[T], /) -> Results[R]:
        """Lets the test answer a batch; the batcher calls it."""
        script = Script(items, self._patience_s)
        self._arrivals.add(ScriptedBatch(items, script), script)
        try:
            said: tuple[Results[R]] = await script.next()
        finally:
            script.is_over = True
        return said[0]


class ScriptedStreams(_ScriptedHandler[ScriptedSteps[T, R]], Generic[T, R]):
    """An async generator handler whose steps the test makes by hand.

    As a context manager it asserts, when its block is left, that every batch was ended, or seen to
    be cancelled, or that nobody read from it any more.

    Args:
        patience_s: After how many seconds a wait ends in an `AssertionError`: the test's for a
            batch, and a batch's for its next step.
    """

    async def __call__(self, items: list[T], /) -> AsyncIterator[Results[Slot[R]]]:
        """Lets the test make the steps of a batch; the batcher calls it."""
        script = Script(items, self._patience_s)
        batch = ScriptedSteps[T, R](items, script)
        self._arrivals.add(batch, script)
        try:
            said: tuple[Results[Slot[R]]] | None
            while (said := await script.next()) is not None:
                batch.made += 1
                yield said[0]
        finally:
            script.is_over = True
