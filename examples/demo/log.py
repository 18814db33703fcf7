"""What happened lately, numbered, for viewers that look in now and then."""

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Log(Generic[T]):
    """Keeps the latest entries, and gives each viewer those that it has not had.

    Args:
        kept: How many entries are kept.

    Attributes:
        end: The number that the next entry will have.
    """

    def __init__(self, kept: int) -> None:
        self._entries: deque[T] = deque(maxlen=kept)
        self.end = 0

    def add(self, entry: T) -> None:
        """Write down one entry."""
        self._entries.append(entry)
        self.end += 1

    def since(self, number: int) -> list[T]:
        """Return the entries from a number on, as far as they are kept."""
        first = self.end - len(self._entries)
        return list(islice(self._entries, max(0, number - first), None))
