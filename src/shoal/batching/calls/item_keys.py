"""The key by which two calls are equal, for calls that share one request.

A key function of the user's says what makes items equal. Without one, items are equal that are the
same text, bytes, whole number or truth value, or that have the same pickle: so no two different
items are ever taken for equal, and two equal ones are at worst computed twice. Hashing and
comparing the items themselves would take 1 for True and 0.0 for -0.0, and most items of models
(dicts, arrays) can't be hashed.

Without a key function, calls of different users are not equal either. What tells users apart is in
the metadata of their calls: its ``user_context`` if it has one, as that of a call over HTTP, else
all of it.
"""

from __future__ import annotations

from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import NOTHING
from shoal.failures.held import held

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

_BY_VALUE: Final = (str, bytes, int, bool, type(None))
_pickled: Final[Callable[[Any], bytes]] = held(dumps, "pickling an item")


def key_of(name: str, item: object, metadata: Mapping[str, Any]) -> Hashable:
    """Raises a `TypeError` if the item can't be pickled."""
    kind = type(item)
    own = item if kind in _BY_VALUE else _bytes_of(name, item)
    if metadata is NOTHING:
        return kind, own
    user = getattr(metadata, "user_context", None)
    return kind, own, _bytes_of(name, dict(metadata)) if user is None else user


def given_key(name: str, function: Callable[[Any], Hashable], item: Any) -> Hashable:
    """Raises a `TypeError` if the key of a user's function is not hashable."""
    key = function(item)
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"dedupe of {name} must return a hashable key, such as a tuple, not {key!r:.80}"
        ) from None
    return key


def _bytes_of(name: str, value: Any) -> bytes:
    try:
        return _pickled(value)
    except Exception as error:
        raise TypeError(
            f"a call to {name} can't be compared with others, since what it passes can't be "
            f"pickled: {error}; say what makes items equal: dedupe=lambda item: item.id"
        ) from error
