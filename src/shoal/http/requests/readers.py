"""The item readers of batchers; each is created when its batcher is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from shoal.http.requests.queries import ItemReader

if TYPE_CHECKING:
    from shoal.batching.batcher import Batcher


class Readers:
    """The item readers of batchers; a reader is dropped together with its batcher."""

    def __init__(self) -> None:
        self._readers: WeakKeyDictionary[Batcher[Any], ItemReader] = WeakKeyDictionary()

    def of(self, batcher: Batcher[Any]) -> ItemReader:
        """Returns the reader for a batcher's items."""
        reader = self._readers.get(batcher)
        if reader is None:
            reader = self._readers[batcher] = ItemReader(batcher.signature)
        return reader
