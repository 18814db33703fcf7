"""Write on from several prompts at once, one character of each at a time.

`generate` is the loop; `TextGenerator` makes it a handler for Shoal: each step yields one slot for
each request, and a prompt that is done, or whose reader has left, costs no more work.

Each step runs the model over all it looks back on. What a cache of keys and values would save is
inside `CharTransformer.next_scores`; the loop here would stay as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

import shoal
from examples.language_model.blas import one_blas_thread
from examples.language_model.layers import Array
from examples.language_model.model import ALPHABET, BOUNDARY, CharTransformer, encode
from shoal import Mark

Slot = str | Literal[Mark.END]
"""What a step holds for one prompt: a character, or that its text is over."""


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
    max_tokens: Annotated[int, Field(ge=1, le=1_000)] = 240
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.6
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class _Writing:
    """One prompt being written on from."""

    def __init__(self, prompt: Prompt) -> None:
        self.tokens = [BOUNDARY, *encode(prompt.text)]
        self._temperature = prompt.temperature
        self._left = prompt.max_tokens
        self._random = np.random.default_rng(prompt.seed)
        self.done = False

    def take(self, scores: Array) -> str | None:
        """Choose the next character, or none where the text is over."""
        token = self._choose(scores)
        self._left -= 1
        if token == BOUNDARY:
            self.done = True
            return None
        self.done = self._left == 0
        self.tokens.append(token)
        return ALPHABET[token]

    def _choose(self, scores: Array) -> int:
        if self._temperature == 0:
            return int(scores.argmax())
        chances = np.exp((scores - scores.max()).astype(np.float64) / self._temperature)
        reached = chances.cumsum()
        point = self._random.random() * reached[-1]
        return min(int(reached.searchsorted(point, side="right")), BOUNDARY)


def generate(
    model: CharTransformer,
    prompts: Sequence[Prompt],
    has_left: Callable[[int], bool] = lambda _: False,
) -> Iterator[list[Slot]]:
    """Write on from the prompts until each is done.

    A prompt is done when the model says that its text is over, or after `max_tokens` characters.
    What is written for a prompt depends on no other prompt.

    Args:
        model: The trained model.
        prompts: What to write on from.
        has_left: Whether nobody waits for the prompt of this index any more; asked each step.

    Yields:
        One slot for each prompt: a character, or `shoal.END` where it is done.
    """
    writings = [_Writing(prompt) for prompt in prompts]
    while True:
        active = [
            index
            for index, writing in enumerate(writings)
            if not writing.done and not has_left(index)
        ]
        if not active:
            return
        slots: list[Slot] = [shoal.END] * len(writings)
        rows = model.next_scores([writings[index].tokens for index in active])
        for index, scores in zip(active, rows, strict=True):
            character = writings[index].take(scores)
            if character is not None:
                slots[index] = character
        yield slots


class TextGenerator:
    """The handler: one model, loaded once."""

    def __init__(self) -> None:
        one_blas_thread()
        self._model = CharTransformer.load()

    def __call__(self, prompts: list[Prompt]) -> Iterator[list[Slot]]:
        """Stream a character for each prompt, step by step."""
        requests = shoal.current_batch().requests
        yield from generate(self._model, prompts, lambda index: requests[index].cancelled)
