"""The capacity of a handler that forwards batches, such as to replicas.

Otherwise the number of worker slots limits how many batches run. If the handler forwards them to
replicas, the numbers of replicas and of idle ones change, and a batch should be formed only when a
replica can take it. Until then its requests stay in the queue, where others join them and those
whose callers leave cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Room(Protocol):
    """The free capacity of a handler, which a batcher checks before it forms a batch."""

    # The handler must take up capacity for its batch before its first wait.

    @property
    def free(self) -> float:
        """How many more batches the handler can take now; infinity for no limit."""
        ...

    def is_full(self) -> bool:
        """Returns whether a due batch must wait; if so, adds the batcher to a wait queue."""
        # It stays in the wait queue until the handler has its batch, or until `rest`.
        ...

    def rest(self) -> None:
        """Leaves the wait queue, because no batch is due any more."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Calls a function whenever the capacity changes, until the returned function is called."""
        ...
