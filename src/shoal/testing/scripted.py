"""Scripted handlers: a test answers their batches.

A test of code that batches checks which requests form a batch, decides when and how it is answered,
and checks the results of the callers. Two handlers serve all such tests. The test takes each batch
from the handler, and the handler waits until the test has answered it.

A missing answer must not make a test hang, so every wait ends after `patience_s` with an
`AssertionError` that describes the wait. In virtual time this is immediate if nothing else can
happen.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio
import anyio.lowlevel

from shoal.batching.current import current_batch
from shoal.core.request import Request, State
from shoal.testing.virtual_time import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from shoal.batching.calls.stream import Results, Slot


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
        items: The items of the batch.
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
        items: The items of the batch.
        requests: The requests of the items, with their metadata and deadlines.
        reason: Why the batch was dispatched.
        made: The number of steps that the handler has made.
    """

    made = 0

    def step(self, slots: Results[Slot[R]]) -> None:
        """Makes the handler yield once.

        Steps are made in order, each when the batcher asks for it. It does not ask while a slow
        reader delays the batch.

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
        self._batches: list[B] = []
        self._scripts: list[Script] = []
        self._taken = 0
        self._arrival: anyio.Event | None = None

    @property
    def batches(self) -> Sequence[B]:
        """All batches that the handler was called with, in order."""
        return self._batches

    async def next_batch(self) -> B:
        """Waits for the next batch that the handler is called with.

        Returns:
            The batch; the handler waits until the test has answered it.

        Raises:
            AssertionError: None arrived within `patience_s`.

        Checkpoint: always.
        """
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(self._patience_s) as patience:
            while self._taken == len(self._batches):
                self._arrival = self._arrival or anyio.Event()
                await self._arrival.wait()
        # The handler may lose its patience at the same time, and then another batch begins.
        if patience.cancelled_caught:
            forgotten = self._forgotten()
            raise AssertionError(
                f"no batch arrived within {self._patience_s} s, after {self._taken} earlier ones"
                + (f"; the test did not answer {forgotten}" if forgotten else "")
            )
        self._taken += 1
        return self._batches[self._taken - 1]

    async def no_batch(self) -> None:
        """Waits until every other task waits, and asserts that there is no new batch.

        Raises:
            AssertionError: There is a batch that `next_batch` has not returned.

        Checkpoint: always.
        """
        await settle()
        if self._taken < len(self._scripts):
            first = self._scripts[self._taken]
            raise AssertionError(f"there should be no batch, but there is {first!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Asserts that every batch that callers waited for was answered."""
        forgotten = self._forgotten()
        if forgotten and exc is None:
            raise AssertionError(f"the test did not answer {forgotten}")

    def _add(self, batch: B, script: Script) -> None:
        self._batches.append(batch)
        self._scripts.append(script)
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None

    def _forgotten(self) -> list[Script]:
        """Returns the scripts whose answers callers wait for, or have waited for in vain."""
        return [script for script in self._scripts if script.is_forgotten()]


class ScriptedHandler(_ScriptedHandler[ScriptedBatch[T, R]], Generic[T, R]):
    """An async handler whose batches the test answers by hand.

    As a context manager it asserts on exit that every batch was answered, or seen to be cancelled,
    or had no waiting callers left.

    Args:
        patience_s: How long the test waits for a batch, and a batch for its answer, in seconds.
            Longer waits raise `AssertionError`.
    """

    async def __call__(self, items: list[T], /) -> Results[R]:
        """Waits for the test to answer a batch; called by the batcher."""
        script = Script(items, self._patience_s)
        self._add(ScriptedBatch(items, script), script)
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
        patience_s: How long the test waits for a batch, and a batch for its next step, in seconds.
            Longer waits raise `AssertionError`.
    """

    async def __call__(self, items: list[T], /) -> AsyncIterator[Results[R]]:
        """Waits for the test to make the steps of a batch; called by the batcher."""
        script = Script(items, self._patience_s)
        batch = ScriptedSteps[T, R](items, script)
        self._add(batch, script)
        try:
            said: tuple[Results[R]] | None
            while (said := await script.next()) is not None:
                batch.made += 1
                yield said[0]
        finally:
            script.is_over = True


class Script:
    """The test's answers for one batch, until the handler uses them; the handler sets `is_over`."""

    def __init__(self, items: Sequence[Any], patience_s: float) -> None:
        self.items = items
        self.batch = current_batch()
        self.is_over = False
        self._patience_s = patience_s
        self._answers: deque[Any] = deque()
        self._changed = anyio.Event()
        self._is_complete = False  # the test has answered how the handler ends
        self._was_waited_for = False  # it has ended otherwise, while callers waited

    def say(self, what: Any, *, last: bool) -> None:
        """Adds an answer, which the handler will use next; `last` if the handler ends with it."""
        if self._is_complete:
            raise AssertionError(f"{self!r} was answered before")
        if self.is_over:
            raise AssertionError(f"{self!r} can't be answered: its handler was cancelled")
        self._answers.append(what)
        self._is_complete = last
        self._changed.set()

    async def next(self) -> Any:
        """Waits for the test's next answer, and returns it, or raises it if it is an exception."""
        running = [r for r in self.batch.requests if r.state is State.RUNNING]
        try:
            await self._wait()
        except BaseException:
            self._was_waited_for = any(r.state is not State.CANCELLED for r in running)
            raise
        said = self._answers.popleft()
        try:
            if isinstance(said, Exception):
                raise said
            return said
        finally:
            del said  # the traceback of an exception holds this frame

    async def _wait(self) -> None:
        with anyio.move_on_after(self._patience_s):
            while not self._answers:
                self._changed = anyio.Event()
                await self._changed.wait()
        if not self._answers:
            raise AssertionError(f"the test did not answer {self!r} within {self._patience_s} s")

    def was_cancelled(self) -> bool:
        """Returns whether the handler ended without an answer; the test then knows."""
        cancelled = self.is_over and (not self._is_complete or bool(self._answers))
        if cancelled:
            self._was_waited_for = False
        return cancelled

    def is_forgotten(self) -> bool:
        """Returns whether callers wait for the test to answer, or have waited in vain."""
        return not self._is_complete and (self._was_waited_for or not self.is_over)

    def __repr__(self) -> str:
        return f"the batch of {self.items!r:.200}"
