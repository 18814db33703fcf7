"""What was set of a decorated handler's options, by whoever holds it: for all of its batchers.

A decorated function outlives the batchers that serve it, and may be set before there is one: a
class sets the size of its own batched method in its constructor, before anybody opens it. So what
is set is kept here, for a method apart for each instance, and each batcher that is opened later
begins with it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Settings:
    """The options that were set, by receiver; None is the receiver of a plain function.

    Invariant: ``_of_instances`` has no instance that is gone, and keeps none alive.
    """

    def __init__(self) -> None:
        self._of_function: dict[str, Any] = {}
        # By id, since an instance need not be hashable, nor equal to itself alone.
        self._of_instances: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}

    def of(self, receiver: object) -> Mapping[str, Any]:
        """Returns what was set for a receiver."""
        if receiver is None:
            return self._of_function
        found = self._of_instances.get(id(receiver))
        return {} if found is None else found[1]

    def own(self, receiver: object) -> dict[str, Any]:
        """Returns what was set for a receiver, for more to be put into it.

        Raises:
            TypeError: The receiver can't be kept track of.
        """
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
