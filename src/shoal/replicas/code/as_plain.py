"""Taking the results of code in this process out of what it has put them into.

The engine is to meet plain lists alone: ``__len__`` and the like of a class of the user's may raise
anything, and do so as a part of the code that gave it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

_REFUSED: Final = (str, bytes, bytearray, Mapping, AbstractSet)
"""What can't be results, and is left to the engine to refuse."""


def as_plain(results: Any) -> Any:
    """Returns results as a list, unless they are plain already, or no results at all.

    Raises:
        BaseException: What the class of the results raised.
    """
    if type(results) in (list, tuple) or isinstance(results, _REFUSED):
        return results  # pyright: ignore[reportUnknownVariableType]
    try:
        count = len(results)
    except TypeError:
        return results
    if getattr(results, "__iter__", None) is not None:
        return list(results)
    return [results[index] for index in range(count)]
