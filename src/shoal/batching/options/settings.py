"""The options set on a decorated handler with `configure`, for all of its batchers.

A decorated function outlives its batchers, and its options may be set before one is open: a class
can set the size of its own batched method in its constructor. So the changes are stored here, for a
method separately for each instance, and each batcher that is opened later starts with them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Settings:
    """The options that were set, by receiver; None is the receiver of a plain function."""

    # Invariant: `_of_instances` has no entry of a collected instance, and keeps none alive.

    def __init__(self) -> None:
        self._of_function: dict[str, Any] = {}
        # By id, since an instance may be unhashable, or equal to another one.
        self._of_instances: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}

    def of(self, receiver: object) -> Mapping[str, Any]:
        if receiver is None:
            return self._of_function
        found = self._of_instances.get(id(receiver))
        return {} if found is None else found[1]

    def own(self, receiver: object) -> dict[str, Any]:
        """Returns a dict to change; raises a `TypeError` without weak references."""
        if receiver is None:
            return self._of_function
        found = self._of_instances.get(id(receiver))
        if found is None:
            found = self._of_instances[id(receiver)] = (self._watched(receiver), {})
        return found[1]

    def _watched(self, receiver: object) -> weakref.ref[Any]:
        number, of_instances = id(receiver), self._of_instances
        try:
            return weakref.ref(receiver, lambda _: of_instances.pop(number, None))
        except TypeError:
            raise TypeError(
                f"options can't be set for one {type(receiver).__qualname__}, because it allows no "
                'weak references; add "__weakref__" to its __slots__'
            ) from None
