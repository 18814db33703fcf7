"""Scripted handlers: handlers whose batches are answered by a test.

A test of code that batches needs to see which requests form a batch, decide when and how it is
answered, and check what the callers get. These two handlers serve all such tests. The test takes
each batch from the handler, and the handler waits until the test has answered it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from shoal.testing.script import Arrivals, Script
from shoal.testing.virtual_time import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from shoal.batching.calls.stream import Results, Slot
    from shoal.core.request import Request

T = TypeVar("T")
R = TypeVar("R")
B = TypeVar("B")


class _Scripted(Generic[T]):
    """A batch that a scripted handler was called with."""

    def __init__(self, items: list[T], script: Script) -> None:
        self.items = items
        self.requests: Sequence[Request] = script.batch.requests
        self.reason = script.batch.reason
        self._script = script

    @property
    def cancelled(self) -> bool:
        """Whether the handler was cancelled or closed before the test's answer was complete.

        This happens when all callers have left, when the handler times out, and when a closing
        batcher stops waiting for it. After a test has read it as True, the batch needs no answer.
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
        requests: The requests of the items, with their metadata and deadlines.
        reason: Why the batch was dispatched.
    """

    def answer(self, results: Results[R]) -> None:
        """Makes the handler return.

        Args:
            results: One for each item, in order; an exception in place of a result fails only its
                caller. They are returned unchecked, so a test can also return wrong results.
        """
        self._script.say((results,), last=True)

    def answer_each(self, function: Callable[[T], R]) -> None:
        """Makes the handler return the results of a function of each item."""
        self.answer([function(item) for item in self.items])


class ScriptedSteps(_Scripted[T], Generic[T, R]):
    """A batch of streams that waits for the test to make its steps.

    Attributes:
        items: What the handler was given.
        requests: The requests of the items, with their metadata and deadlines.
        reason: Why the batch was dispatched.
        made: The number of steps that the handler has made.
    """

    made = 0

    def step(self, slots: Results[Slot[R]]) -> None:
        """Makes the handler yield once.

        Steps are made in order, each when the batcher asks for it, so not while a slow reader holds
        the batch back.

        Args:
            slots: One for each item, in order: the stream's next item, `shoal.END`, `shoal.SKIP`,
                or an exception that fails only this stream.
        """
        self._script.say((slots,), last=False)

    def end(self) -> None:
        """Makes the handler end, which ends all streams that are still open."""
        self._script.say(None, last=True)


class _ScriptedHandler(Generic[B]):
    """The base of both scripted handlers: the list of batches, and access to them."""

    def __init__(self, *, patience_s: float = 60.0) -> None:
        self._patience_s = patience_s
        self._arrivals = Arrivals[B](patience_s)

    @property
    def batches(self) -> Sequence[B]:
        """All batches that the handler was called with, in order."""
        return self._arrivals.batches

    async def next_batch(self) -> B:
        """Waits for the next batch that the handler is called with.

        Returns:
            The batch; the handler waits until the test has answered it.

        Raises:
            AssertionError: None arrived within `patience_s`.

        Checkpoint: always.
        """
        return await self._arrivals.next()

    async def no_batch(self) -> None:
        """Waits until every other task waits, and asserts that there is no new batch.

        Raises:
            AssertionError: There is a batch that `next_batch` has not returned.

        Checkpoint: always.
        """
        await settle()
        if untaken := self._arrivals.untaken():
            raise AssertionError(f"there should be no batch, but there is {untaken[0]!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Asserts that every batch that callers waited for was answered."""
        forgotten = self._arrivals.forgotten()
        if forgotten and exc is None:
            raise AssertionError(f"the test did not answer {forgotten}")


class ScriptedHandler(_ScriptedHandler[ScriptedBatch[T, R]], Generic[T, R]):
    """An async handler whose batches the test answers by hand.

    As a context manager it asserts on exit that every batch was answered, or seen to be cancelled,
    or had no waiting callers left.

    Args:
        patience_s: The time limit in seconds, after which a wait raises `AssertionError`: that of
            the test for a batch, and that of a batch for its answer.
    """

    async def __call__(self, items: list[T], /) -> Results[R]:
        """Waits for the test to answer a batch; called by the batcher."""
        script = Script(items, self._patience_s)
        self._arrivals.add(ScriptedBatch(items, script), script)
        try:
            said: tuple[Results[R]] = await script.next()
        finally:
            script.is_over = True
        return said[0]


class ScriptedStreams(_ScriptedHandler[ScriptedSteps[T, R]], Generic[T, R]):
    """An async generator handler whose steps the test makes by hand.

    As a context manager it asserts on exit that every batch was ended, or seen to be cancelled, or
    had no readers left.

    Args:
        patience_s: The time limit in seconds, after which a wait raises `AssertionError`: that of
            the test for a batch, and that of a batch for its next step.
    """

    async def __call__(self, items: list[T], /) -> AsyncIterator[Results[R]]:
        """Waits for the test to make the steps of a batch; called by the batcher."""
        script = Script(items, self._patience_s)
        batch = ScriptedSteps[T, R](items, script)
        self._arrivals.add(batch, script)
        try:
            said: tuple[Results[R]] | None
            while (said := await script.next()) is not None:
                batch.made += 1
                yield said[0]
        finally:
            script.is_over = True
