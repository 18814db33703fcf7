"""Room: what a handler can take beyond its slots, where something behind it decides that.

A slot says how many batches may be in the handler. Where the handler hands them on to replicas,
how many there are, and how many of them are idle, changes by itself, and a batch should be cut only
when one of them can take it: until then its requests are better off in line, where others join
them and those whose callers leave cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Room(Protocol):
    """What a batcher asks before it cuts a batch.

    The handler must take its place before it first waits for anything.
    """

    @property
    def free(self) -> float:
        """How many more batches the handler can take now; infinity for any number."""
        ...

    def is_full(self) -> bool:
        """Says whether a batch that is due has to wait; the batcher then has a place in the queue.

        It keeps that until its batch is in the handler, or until it rests.
        """
        ...

    def rest(self) -> None:
        """Gives up the place in the queue: there is no batch that is due any more."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Has a function called whenever there is more or less room.

        Returns:
            What ends that.
        """
        ...
