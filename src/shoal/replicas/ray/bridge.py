"""Ray's futures and generators, awaited in any event loop.

Ray tells of a result by a callback in a thread of its own. That callback may do one thing: hand a
function to the event loop, and go. Were it to wait for the loop, no other result would come in.
Awaiting Ray's references is for asyncio alone, and no faster.

Of a generator Ray tells nothing by callback, so each stream has a thread that asks for its steps.
Asking from a worker thread for one step at a time costs a hand-over a step.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.replicas.run_soon import Soon

_AHEAD: Final = 2
"""How many steps of a stream are fetched before they are asked for."""


class Pump:
    """The steps of one of Ray's generators, fetched by a thread.

    Everything but the fetching happens in the event loop.

    Args:
        references: Ray's generator.
        get: Gives what a reference stands for.
        soon: Reaches the event loop.

    Attributes:
        steps: Those that have come and not been taken.
        ended: Set when no more will come.
        error: What ended it; None if it came to its own end.
        change: Set when any of these has changed; then there is a new one.
    """

    def __init__(
        self, references: Iterator[Any], get: Callable[[Any], Any], soon: Soon, name: str
    ) -> None:
        self.steps: deque[Any] = deque()
        self.ended = anyio.Event()
        self.error: Exception | None = None
        self.change = anyio.Event()
        self._references = references
        self._get = get
        self._soon = soon
        self._permits = threading.Semaphore(_AHEAD)
        self._drops = False
        # A daemon: one that Ray never answers must not keep the program from ending.
        threading.Thread(target=self._fetch, name=name, daemon=True).start()

    def take(self) -> Any:
        """Returns the next of the steps that have come, and lets the thread fetch another."""
        step = self.steps.popleft()
        self._permits.release()
        return step

    def drop(self) -> None:
        """Drops what else comes, as it comes: the generator must not wait for a reader."""
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
                self._soon(self._came, step)
        except StopIteration:
            pass
        except Exception as raised:
            error = raised
        self._soon(self._ended, error)

    def _came(self, step: Any) -> None:
        if not self._drops:
            self.steps.append(step)
            self._tell()

    def _ended(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()
        self._tell()

    def _tell(self) -> None:
        self.change.set()
        self.change = anyio.Event()
