"""Write on from several prompts at once: the loop that the handlers for Shoal share.

A `Writer` holds what is being written. Texts join and leave between its steps; each step makes all
of them longer by one character. A step for eight costs two and a half times one for one.
"""

from typing import Annotated, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from examples.language_model.cache import Cache
from examples.language_model.layers import Array
from examples.language_model.model import ALPHABET, BOUNDARY, CharTransformer, encode

Key = TypeVar("Key")


class Prompt(BaseModel):
    """A text to write on from, and how.

    Attributes:
        text: The beginning. A character outside printable ASCII counts as a question mark.
        max_tokens: The most characters to write.
        temperature: 0 takes the likeliest character each time; higher is more varied.
        seed: Equal seeds give equal texts; without one each answer differs.
    """

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=2_000)] = ""
    max_tokens: Annotated[int, Field(ge=1, le=5_000)] = 240
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.6
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class Written(NamedTuple, Generic[Key]):
    """What a step wrote for one text.

    Attributes:
        key: The text's key.
        character: The character; None where the model says that the text is over.
        over: Whether this was the last step of this text.
    """

    key: Key
    character: str | None
    over: bool


class _Text(Generic[Key]):
    """One text being written."""

    def __init__(self, key: Key, prompt: Prompt) -> None:
        self.key = key
        *self.beginning, self.last = (BOUNDARY, *encode(prompt.text))
        # So near to zero all but the likeliest are out of the question.
        self.temperature = max(prompt.temperature, 1e-6)
        self._left = prompt.max_tokens
        self._random = np.random.default_rng(prompt.seed)

    def chance(self) -> float:
        """Draw what decides on the next character: above 0, and up to 1."""
        return 1 - self._random.random()

    def grow(self, token: int) -> Written[Key]:
        """Take the next token, and say what that means."""
        self.last = token
        self._left -= 1
        character = None if token == BOUNDARY else ALPHABET[token]
        return Written(self.key, character, over=character is None or self._left == 0)


class Writer(Generic[Key]):
    """The texts that are being written; each has a key, by which its owner knows it.

    What is written for a prompt depends on no other prompt. A text is over when the model says so,
    or after `max_tokens` characters.

    Args:
        model: The trained model.
        room: The most texts at once.
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
        """Begin to write on from a prompt."""
        text = _Text(key, prompt)
        # The last token of the prompt is read by the text's first step.
        self._cache.join(text.beginning)
        self._texts.append(text)

    def leave(self, key: Key) -> None:
        """Stop writing a text; what it took in the cache is free."""
        self._drop(self.keys.index(key))

    def step(self) -> list[Written[Key]]:
        """Write one character of each text; what is over has left."""
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
    """Choose a token for each row of scores.

    Args:
        scores: What the model says, a row for each text.
        temperatures: How far the likely tokens are preferred, for each text.
        chances: Where, from 0 to 1, the choice falls when all tokens are lined up, each as wide as
            it is likely.
    """
    ahead = (scores - scores.max(axis=1, keepdims=True)) / temperatures[:, None]
    ends = np.exp(ahead).cumsum(axis=1)
    tokens: list[int] = (ends < chances[:, None] * ends[:, -1:]).sum(axis=1).tolist()
    return tokens
