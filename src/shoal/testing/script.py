"""The state that a test and a scripted handler share: one record for each batch, and its waits.

A missing answer must not make a test hang, so every wait ends after `patience_s` with an
`AssertionError` that describes the wait. In virtual time this is immediate if nothing else can
happen.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from shoal.batching.current import current_batch
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Sequence

B = TypeVar("B")


class Script:
    """The test's answers for one batch, until the handler uses them; the handler sets `is_over`."""

    def __init__(self, items: Sequence[Any], patience_s: float) -> None:
        self.items = items
        self.batch = current_batch()
        self.is_over = False
        self._patience_s = patience_s
        self._said: deque[Any] = deque()
        self._changed = anyio.Event()
        self._is_complete = False  # the test has answered how the handler ends
        self._is_played = False  # the handler has ended in this way
        self._was_waited_for = False  # it has ended otherwise, while callers waited

    def say(self, what: Any, *, last: bool) -> None:
        """Adds an answer, which the handler will use next; `last` if the handler ends with it."""
        if self._is_complete:
            raise AssertionError(f"{self!r} was answered before")
        if self.is_over:
            raise AssertionError(f"{self!r} can't be answered: its handler was cancelled")
        self._said.append(what)
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
        said = self._said.popleft()
        self._is_played = self._is_complete and not self._said
        try:
            if isinstance(said, Exception):
                raise said
            return said
        finally:
            del said  # the traceback of an exception holds this frame

    async def _wait(self) -> None:
        with anyio.move_on_after(self._patience_s):
            while not self._said:
                self._changed = anyio.Event()
                await self._changed.wait()
        if not self._said:
            raise AssertionError(f"the test did not answer {self!r} within {self._patience_s} s")

    def was_cancelled(self) -> bool:
        """Returns whether the handler ended without an answer; the test then knows."""
        cancelled = self.is_over and not self._is_played
        if cancelled:
            self._was_waited_for = False
        return cancelled

    def is_forgotten(self) -> bool:
        """Returns whether callers wait for the test to answer, or have waited in vain."""
        return not self._is_complete and (self._was_waited_for or not self.is_over)

    def __repr__(self) -> str:
        return f"the batch of {self.items!r:.200}"


class Arrivals(Generic[B]):
    """The batches of one scripted handler, and the test's wait for the next one."""

    def __init__(self, patience_s: float) -> None:
        self.batches: list[B] = []
        self.scripts: list[Script] = []
        self._patience_s = patience_s
        self._taken = 0
        self._arrival: anyio.Event | None = None

    def add(self, batch: B, script: Script) -> None:
        self.batches.append(batch)
        self.scripts.append(script)
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None

    def untaken(self) -> list[Script]:
        """Returns the batches that `next` has not returned yet."""
        return self.scripts[self._taken :]

    async def next(self) -> B:
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(self._patience_s) as patience:
            while not self.untaken():
                self._arrival = self._arrival or anyio.Event()
                await self._arrival.wait()
        # The handler may lose its patience at the same time, and then another batch begins.
        if patience.cancelled_caught:
            raise AssertionError(
                f"no batch arrived within {self._patience_s} s, after {self._taken} earlier ones"
                + self._missing_answers()
            )
        self._taken += 1
        return self.batches[self._taken - 1]

    def forgotten(self) -> list[Script]:
        """Returns the scripts whose answers callers wait for, or have waited for in vain."""
        return [script for script in self.scripts if script.is_forgotten()]

    def _missing_answers(self) -> str:
        forgotten = self.forgotten()
        return f"; the test did not answer {forgotten}" if forgotten else ""
