"""Continues several prompts at once: the loop that both handlers for Shoal use.

A `Writer` keeps the texts that are being written. Texts join and leave between its steps, and each
step appends one character to each text. A step for eight texts takes 2.5 times as long as for one.
"""

from typing import Annotated, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from examples.language_model.cache import Cache
from examples.language_model.layers import Array
from examples.language_model.model import ALPHABET, BOUNDARY, CharTransformer, encode

Key = TypeVar("Key")


class Prompt(BaseModel):
    """A text to continue, and options.

    Attributes:
        text: The beginning. A character outside printable ASCII is read as a question mark.
        max_tokens: The maximum number of characters to write.
        temperature: 0 always takes the most likely character; higher values vary more.
        seed: Equal seeds give equal texts; without a seed texts differ.
    """

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=2_000)] = ""
    max_tokens: Annotated[int, Field(ge=1, le=5_000)] = 240
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.6
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class Written(NamedTuple, Generic[Key]):
    """The output of a step for one text.

    Attributes:
        key: The text's key.
        character: The character; None if the model ended the text.
        over: Whether this was the last step of the text.
    """

    key: Key
    character: str | None
    over: bool


class _Text(Generic[Key]):
    """One text being written."""

    def __init__(self, key: Key, prompt: Prompt) -> None:
        self.key = key
        *self.beginning, self.last = (BOUNDARY, *encode(prompt.text))
        # So close to zero, only the most likely character is chosen.
        self.temperature = max(prompt.temperature, 1e-6)
        self._left = prompt.max_tokens
        self._random = np.random.default_rng(prompt.seed)

    def chance(self) -> float:
        """Draws the random number for the next character: above 0, up to 1."""
        return 1 - self._random.random()

    def grow(self, token: int) -> Written[Key]:
        """Appends the next token; returns the output for it."""
        self.last = token
        self._left -= 1
        character = None if token == BOUNDARY else ALPHABET[token]
        return Written(self.key, character, over=character is None or self._left == 0)


class Writer(Generic[Key]):
    """The texts that are being written; each has a key that its owner chooses.

    The text of a prompt does not depend on other prompts. A text is over when the model ends it, or
    after `max_tokens` characters.

    Args:
        model: The trained model.
        room: The maximum number of concurrent texts.
    """

    def __init__(self, model: CharTransformer, room: int) -> None:
        self._cache = Cache(model, room)
        # In the order of the cache's rows.
        self._texts: list[_Text[Key]] = []

    @property
    def keys(self) -> list[Key]:
        """The keys of the texts that are being written."""
        return [text.key for text in self._texts]

    def join(self, key: Key, prompt: Prompt) -> None:
        """Adds a prompt to continue."""
        text = _Text(key, prompt)
        # The first step of the text reads the last token of the prompt.
        self._cache.join(text.beginning)
        self._texts.append(text)

    def leave(self, key: Key) -> None:
        """Removes a text, and frees its row in the cache."""
        self._drop(self.keys.index(key))

    def step(self) -> list[Written[Key]]:
        """Writes one character of each text, and removes the texts that are over."""
        if not self._texts:
            return []
        scores = self._cache.step([text.last for text in self._texts])
        tokens = _choose(
            scores,
            temperatures=np.array([text.temperature for text in self._texts]),
            chances=np.array([text.chance() for text in self._texts]),
        )
        written = [text.grow(token) for text, token in zip(self._texts, tokens, strict=True)]
        for row in reversed(range(len(written))):
            if written[row].over:
                self._drop(row)
        return written

    def _drop(self, row: int) -> None:
        self._cache.leave(row)
        # The last row moves to its place, as it does in the cache.
        last = self._texts.pop()
        if row < len(self._texts):
            self._texts[row] = last


def _choose(scores: Array, *, temperatures: Array, chances: Array) -> list[int]:
    """Chooses a token for each row of scores.

    Args:
        scores: The scores of the model, a row for each text.
        temperatures: The temperature of each text.
        chances: A random number for each text: the quantile of the cumulative distribution over
            tokens at which the token is chosen.
    """
    ahead = (scores - scores.max(axis=1, keepdims=True)) / temperatures[:, None]
    ends = np.exp(ahead).cumsum(axis=1)
    tokens: list[int] = (ends < chances[:, None] * ends[:, -1:]).sum(axis=1).tolist()
    return tokens
