"""Who observes the batchers of a decorated handler, whichever are opened.

A batcher has observers. A decorated handler has a batcher for each event loop and instance, which
are opened and closed as the program runs, and number their batches alike. So each batcher gets an
observer of its own, as soon as it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.batching.batcher import Batcher
    from shoal.core.events import BatchObserver


class Watch:
    """Observes each batcher of a decorated handler."""

    def __init__(self, new_observer: Callable[[], BatchObserver]) -> None:
        self._new_observer = new_observer
        # It must not keep the batchers of instances that are gone.
        self._observed: WeakKeyDictionary[Batcher[Any], BatchObserver] = WeakKeyDictionary()

    def begin(self, batcher: Batcher[Any]) -> None:
        observer = self._observed[batcher] = self._new_observer()
        batcher.observers.add(observer)

    def end(self) -> list[BatchObserver]:
        """Ends observing; returns the observers."""
        ended = list(self._observed.items())
        self._observed.clear()
        for batcher, observer in ended:
            batcher.observers.remove(observer)
        return [observer for _, observer in ended]


class Watches:
    """The observers of one decorated handler's batchers."""

    def __init__(self, opened: Callable[[], Iterable[Batcher[Any]]]) -> None:
        self._opened = opened
        self._all: dict[object, Watch] = {}

    def begin(self, kind: object, new_observer: Callable[[], BatchObserver]) -> None:
        """Observes open and later batchers; raises a `KeyError` if that kind does so already."""
        if kind in self._all:
            raise KeyError(kind)
        watch = self._all[kind] = Watch(new_observer)
        for batcher in self._opened():
            watch.begin(batcher)

    def end(self, kind: object) -> list[BatchObserver]:
        """Ends observers of a kind, if there are any, and returns them."""
        watch = self._all.pop(kind, None)
        return [] if watch is None else watch.end()

    def opening(self, batcher: Batcher[Any]) -> None:
        """Adds the observers to a batcher that is about to be opened."""
        for watch in tuple(self._all.values()):
            watch.begin(batcher)
