"""Conversion of results of code in this process to plain lists.

The batcher must see only plain lists: ``__len__`` and other methods of a user's class may raise
anything, and have to run as part of the code that returned the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

_REFUSED: Final = (str, bytes, bytearray, Mapping, AbstractSet)
"""Types that can't be results; the batcher rejects them."""


def as_plain(results: Any) -> Any:
    """Returns results as a list, unless they are already plain or no valid results.

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
