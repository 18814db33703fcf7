"""The language model behind a continuous batch: prompts join and leave between two steps.

The handler runs as long as its batcher is open. A prompt that is done, or whose reader has left,
frees its place immediately, and the next prompt in the queue joins in the next step. So no place
stays empty while requests wait, and no request waits for the longest text of a batch.
"""

from collections.abc import Sequence

from anyio import to_thread

import shoal
from examples.language_model.blas import one_blas_thread
from examples.language_model.model import CharTransformer
from examples.language_model.writing import Prompt, Writer, Written

TEXTS_AT_ONCE = 8
"""The size of the cache, and the value for `max_batch_size`."""

Request = shoal.OpenRequest[Prompt, str]


class ContinuousTextGenerator:
    """The handler: one model, loaded once.

    Args:
        model: The model; by default the included one.
    """

    def __init__(self, model: CharTransformer | None = None) -> None:
        one_blas_thread()
        self._model = model or CharTransformer.load()

    async def __call__(self, batch: shoal.OpenBatch[Prompt, str]) -> None:
        """Streams one character for each prompt in each step."""
        writer: Writer[Request] = Writer(self._model, TEXTS_AT_ONCE)
        async for joined in batch.steps():
            # A step blocks. In a thread it does not block the event loop for readers.
            written = await to_thread.run_sync(_step, writer, joined)
            await batch.send(
                {one.key: one.character for one in written if one.character is not None}
            )
            for one in written:
                if one.over:
                    one.key.finish()


def _step(writer: Writer[Request], joined: Sequence[Request]) -> list[Written[Request]]:
    for request in writer.keys:
        if request.ended:
            writer.leave(request)
    for request in joined:
        writer.join(request, request.item)
    return writer.step()
