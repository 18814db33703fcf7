"""The language model behind a closed batch: prompts start together and run until all are done.

`generate` is the loop; `TextGenerator` makes it a handler for Shoal. Each step yields one entry for
each request. A prompt that is done, or whose reader has left, costs no more work, but its place
stays empty until the last prompt of the batch is done. `continuous.py` refills such places.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import shoal
from examples.language_model.blas import one_blas_thread
from examples.language_model.model import CharTransformer
from examples.language_model.writing import Prompt, Writer
from shoal import Mark

Entry = str | Literal[Mark.END]
"""The output of a step for one prompt: a character, or the mark that its text has ended."""


def generate(
    model: CharTransformer,
    prompts: Sequence[Prompt],
    has_left: Callable[[int], bool] = lambda _: False,
) -> Iterator[list[Entry]]:
    """Continues the prompts until each is done.

    Args:
        model: The trained model.
        prompts: The prompts to continue.
        has_left: Returns whether the caller of the prompt with this index has left; called in
            each step.

    Yields:
        One entry for each prompt: a character, or `shoal.END` if it is done.
    """
    writer: Writer[int] = Writer(model, len(prompts))
    for index, prompt in enumerate(prompts):
        writer.join(index, prompt)
    while True:
        for index in filter(has_left, writer.keys):
            writer.leave(index)
        if not writer.keys:
            return
        entries: list[Entry] = [shoal.END] * len(prompts)
        for written in writer.step():
            if written.character is not None:
                entries[written.key] = written.character
        yield entries


class TextGenerator:
    """The handler: one model, loaded once.

    Args:
        model: The model; by default the included one.
    """

    def __init__(self, model: CharTransformer | None = None) -> None:
        one_blas_thread()
        self._model = model or CharTransformer.load()

    def __call__(self, prompts: list[Prompt]) -> Iterator[list[Entry]]:
        """Streams one character for each prompt in each step."""
        requests = shoal.current_batch().requests
        yield from generate(self._model, prompts, lambda index: requests[index].cancelled)
