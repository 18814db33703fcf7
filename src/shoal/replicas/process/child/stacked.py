"""Equal arrays that lie one after another in memory, and are one array without a copy.

A batch of arrays comes into a worker in one block. Code that asks ``numpy.asarray(items)`` for one
array of them all would have them copied once more, although they are that array already. So the
list of the items tells of it, by NumPy's array interface, which asks for no NumPy here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Stacked(list[Any]):
    """A list of arrays that came in one block."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The array that all of them are, while they are unchanged in their places.

        Raises:
            AttributeError: They are not one array any more; it is a list like any other.
        """
        interfaces = [getattr(item, "__array_interface__", None) for item in self]
        first = interfaces[0] if interfaces else None
        if first is None or first.get("strides") is not None or 0 in first["shape"]:
            raise AttributeError
        start, is_read_only = first["data"]
        size = memoryview(self[0]).nbytes
        for nth, interface in enumerate(interfaces):
            if interface != {**first, "data": (start + nth * size, is_read_only)}:
                raise AttributeError
        return {**first, "shape": (len(self), *first["shape"])}


def stacked(items: list[Any], places: Sequence[tuple[int, int]]) -> list[Any]:
    """Returns the items; as `Stacked` where they may be one array.

    Args:
        items: The items of a batch.
        places: Where the buffers of the batch lie: offsets and sizes.
    """
    if not items or len(places) != len(items):
        return items
    start, size = places[0]
    for nth, place in enumerate(places):
        if place != (start + nth * size, size):
            return items
    return Stacked(items)
