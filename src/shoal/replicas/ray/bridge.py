"""Iteration over Ray's generators, in any event loop.

Ray reports a result with a callback in a thread of its own. That callback may only schedule a
function in the event loop. If it waited for the loop, it would block all other results. Awaiting
Ray's references works only with asyncio, and is no faster.

Ray has no callbacks for generators, so each stream has a thread that fetches its steps. Fetching
one step at a time in a worker thread would cost a thread switch for each step.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.replicas.threads import Soon

_AHEAD: Final = 2
"""How many steps of a stream are fetched in advance."""


class Pump:
    """The steps of one of Ray's generators. Only the fetching happens in a thread."""

    def __init__(
        self, references: Iterator[Any], get: Callable[[Any], Any], soon: Soon, name: str
    ) -> None:
        # Fetched, and not taken yet.
        self.steps: deque[Any] = deque()
        self.ended = anyio.Event()
        # The error that ended the generator; None if it ended normally.
        self.error: Exception | None = None
        # Set when one of these changes, and then replaced with a new event.
        self.change = anyio.Event()
        self._references = references
        self._get = get
        self._soon = soon
        self._permits = threading.Semaphore(_AHEAD)
        self._drops = False
        # A daemon: if Ray never answers, the program must still be able to exit.
        threading.Thread(target=self._fetch, name=name, daemon=True).start()

    def take(self) -> Any:
        """Returns the next fetched step, and lets the thread fetch another."""
        step = self.steps.popleft()
        self._permits.release()
        return step

    def drop(self) -> None:
        """Discards all further steps; fetching continues, so that the generator does not block."""
        self._drops = True
        self.steps.clear()
        self._permits.release()

    def _fetch(self) -> None:
        error: Exception | None = None
        try:
            while True:
                if not self._drops:
                    self._permits.acquire()
                step = self._get(next(self._references))
                self._soon(self._fetched, step)
        except StopIteration:
            pass
        except Exception as raised:
            error = raised
        self._soon(self._ended, error)

    def _fetched(self, step: Any) -> None:
        if not self._drops:
            self.steps.append(step)
            self._signal_change()

    def _ended(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()
        self._signal_change()

    def _signal_change(self) -> None:
        self.change.set()
        self.change = anyio.Event()
