"""The readers of the batchers there are: each is made when its batcher is first met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from shoal.http.requests.queries import ItemReader

if TYPE_CHECKING:
    from shoal.batching.batcher import Batcher


class Readers:
    """Makes items for batchers; what it keeps goes when the batcher does."""

    def __init__(self) -> None:
        self._readers: WeakKeyDictionary[Batcher[Any], ItemReader] = WeakKeyDictionary()

    def of(self, batcher: Batcher[Any]) -> ItemReader:
        """Returns what makes the items of calls of a batcher."""
        reader = self._readers.get(batcher)
        if reader is None:
            reader = self._readers[batcher] = ItemReader(batcher.signature)
        return reader
