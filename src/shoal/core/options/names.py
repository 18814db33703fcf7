"""Suggestions for unknown option names.

A wrong suggestion is worse than none. So a name is suggested only if its spelling is close to the
one that was given, or if it contains all of its words.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_ALIKE: Final = 0.75
"""The least similarity of two names for one to be a misspelling of the other: one letter of six."""

_TIMES_OF_CALLS: Final = ("deadline_s", "deadline", "request_timeout_s")
"""Other names for the ``timeout_s`` of one call."""


def suggested(name: object, known: Collection[str]) -> str | None:
    """Returns a clause such as ``did you mean 'max_batch_size'?``; None without a similar name."""
    if name in _TIMES_OF_CALLS and "timeout_s" in known:
        return "write timeout_s, in seconds"
    near = nearest(name, known)
    return None if near is None else f"did you mean {near!r}?"


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown_option(owner, name, known)


def unknown_option(owner: str, name: object, known: Collection[str]) -> TypeError:
    hint = suggested(name, known) or f"there are {', '.join(known)}"
    return TypeError(f"{name!r} is not an option of {owner}; {hint}")


def nearest(name: object, known: Collection[str]) -> str | None:
    """Returns the known name that is most similar to an unknown one; None if none is similar."""
    # A name that lacks only the prefix `max_` or the unit is closer than one that starts or ends
    # alike: `batch_size` means `max_batch_size`, not `batch_size_fn`.
    given = str(name).lower().strip("-")
    by_likeness = {one: _likeness(given, one.lower().strip("-")) for one in known}
    near = {one: likeness for one, likeness in by_likeness.items() if likeness >= _ALIKE}
    return max(near, key=near.__getitem__, default=None)


def _likeness(given: str, known: str) -> float:
    """Returns a similarity from 0 to 1, plus 1 if `known` has all words of `given`."""
    whole = SequenceMatcher(None, given, known).ratio()
    core = SequenceMatcher(None, _core(given), _core(known)).ratio()
    has_all_words = _words(given) <= _words(known)
    return max(whole, core) + has_all_words


def _core(name: str) -> str:
    return name.removeprefix("max_").removesuffix("_s")


def _words(name: str) -> set[str]:
    words = _core(name).replace("-", "_").split("_")
    return {word.removesuffix("s").removesuffix("d") for word in words}
