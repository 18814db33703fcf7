"""A bounded log of numbered entries, for viewers that poll it."""

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Log(Generic[T]):
    """Keeps the latest entries, and returns those from a number on.

    Args:
        kept: The number of entries to keep.

    Attributes:
        end: The number of the next entry.
    """

    def __init__(self, kept: int) -> None:
        self._entries: deque[T] = deque(maxlen=kept)
        self.end = 0

    def add(self, entry: T) -> None:
        """Adds an entry."""
        self._entries.append(entry)
        self.end += 1

    def since(self, number: int) -> list[T]:
        """Returns the entries from a number on that are still kept."""
        first = self.end - len(self._entries)
        return list(islice(self._entries, max(0, number - first), None))
