"""The language model behind a closed batch: prompts start together and run until all are done.

`generate` is the loop; `TextGenerator` makes it a handler for Shoal: each step yields one slot for
each request, and a prompt that is done, or whose reader has left, costs no more work. But its place
stays empty until the last of the batch is done; `continuous.py` fills it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import shoal
from examples.language_model.blas import one_blas_thread
from examples.language_model.model import CharTransformer
from examples.language_model.writing import Prompt, Writer
from shoal import Mark

Slot = str | Literal[Mark.END]
"""What a step holds for one prompt: a character, or that its text is over."""


def generate(
    model: CharTransformer,
    prompts: Sequence[Prompt],
    has_left: Callable[[int], bool] = lambda _: False,
) -> Iterator[list[Slot]]:
    """Write on from the prompts until each is done.

    Args:
        model: The trained model.
        prompts: What to write on from.
        has_left: Whether nobody waits for the prompt of this index any more; asked each step.

    Yields:
        One slot for each prompt: a character, or `shoal.END` where it is done.
    """
    writer: Writer[int] = Writer(model, len(prompts))
    for index, prompt in enumerate(prompts):
        writer.join(index, prompt)
    while True:
        for index in filter(has_left, writer.keys):
            writer.leave(index)
        if not writer.keys:
            return
        slots: list[Slot] = [shoal.END] * len(prompts)
        for written in writer.step():
            if written.character is not None:
                slots[written.key] = written.character
        yield slots


class TextGenerator:
    """The handler: one model, loaded once.

    Args:
        model: The model; the one that ships unless given.
    """

    def __init__(self, model: CharTransformer | None = None) -> None:
        one_blas_thread()
        self._model = model or CharTransformer.load()

    def __call__(self, prompts: list[Prompt]) -> Iterator[list[Slot]]:
        """Stream a character for each prompt, step by step."""
        requests = shoal.current_batch().requests
        yield from generate(self._model, prompts, lambda index: requests[index].cancelled)
