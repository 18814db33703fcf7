"""Finds where a text ends: at a stop sequence, or at its number of tokens.

Both work for every model, even if it supports neither. A stop sequence may lie across pieces, so an
end of the text that may begin one is held back until the next piece.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WORD: Final = re.compile(r"\S+")


def count_words(text: str) -> int:
    """Counts tokens, if no other function does."""
    return len(text.split())


class TextEnd:
    """Finds the end of one text, which is before the first stop sequence."""

    # Defaults that most texts keep.
    # "stop" or "length" once the text has ended.
    reason: str | None = None
    tokens = 0
    _firsts: frozenset[str] = frozenset()
    _held = ""

    def __init__(
        self, stops: Sequence[str], most: int | None, count: Callable[[str], int] | None
    ) -> None:
        self._stops = stops
        self._most = most
        # None if each piece is one token.
        self._count = count
        if stops:
            self._firsts = frozenset(stop[0] for stop in stops)

    @property
    def counts(self) -> bool:
        return self._count is not None

    @property
    def plain_below(self) -> float:
        """The number of tokens below which a piece that `is_clear` is one token."""
        # Such a piece is taken as it is: `take` need not be called for it if `tokens` is increased.
        if self._count is not None:
            return 0
        return math.inf if self._most is None else self._most

    def is_clear(self, piece: str) -> bool:
        """Returns whether no stop sequence can begin in a piece, or continue in it."""
        if not self._stops:
            return True
        return not self._held and self._firsts.isdisjoint(piece)

    def take(self, piece: str, counted_too: str = "") -> str:
        """Takes the next piece of the text; returns the part that is certain."""
        count, most = self._count, self._most
        tokens = self.tokens + (1 if count is None else count(piece + counted_too))
        reason = None
        if most is not None and tokens >= most:
            reason = "length"
            if count is not None and tokens > most:
                piece = _beginning(piece, most - self.tokens, count)
                tokens = most
        text = self._held + piece
        places = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            text, reason = text[: min(places)], "stop"
        elif reason is None and self._stops:
            certain = len(text) - _held_back(text, self._stops)
            self._held = text[certain:]
            self.tokens = tokens
            return text[:certain]
        self._held = ""
        self.tokens = tokens
        self.reason = reason
        return text

    def whole(self, text: str) -> str:
        """Takes a whole text, and no other; returns the part before its end."""
        if self._count is None:
            self._count = count_words
        if not self._stops:
            tokens = self._count(text)
            if self._most is None or tokens < self._most:
                self.tokens = tokens
                self.reason = "stop"
                return text
        text = self.take(text)
        if self.reason == "stop":
            self.tokens = self._count(text)
        return text + self.rest()

    def count_also(self, text: str) -> None:
        """Adds the tokens of another text, which has no limit, to those of a whole text."""
        if text:
            self.tokens += (self._count or count_words)(text)

    def rest(self) -> str:
        """Returns the text that was held back, since the model has ended the text."""
        rest, self._held = self._held, ""
        if self.reason is None:
            self.reason = "stop"
        return rest


def _beginning(text: str, tokens: int, count: Callable[[str], int]) -> str:
    if count is count_words:
        last = 0
        for nth, word in enumerate(_WORD.finditer(text)):
            if nth == tokens:
                break
            last = word.end()
        return text[:last]
    fits, fails = 0, len(text) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if count(text[:middle]) <= tokens:
            fits = middle
        else:
            fails = middle
    return text[:fits]


def _held_back(text: str, stops: Sequence[str]) -> int:
    """Returns the length of the longest end of a text that may begin a stop sequence."""
    longest = 0
    for stop in stops:
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0 and len(text) - at > longest:
            if stop.startswith(text[at:]):
                longest = len(text) - at
                break
            at = text.find(stop[0], at + 1)
    return longest
