"""The model of http_openai_peers.py as Shoal's users write it.

It is there with closed batches, with continuous ones, and with continuous ones in a process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

import shoal
from benchmarks.http_handlers import MAX_BATCH_SIZE, MODEL_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator

app: Final = shoal.App(protocols=["openai"])


@app.endpoint("/generate", name="generate", max_batch_size=MAX_BATCH_SIZE)
def generate(prompts: list[str]) -> Iterator[list[str]]:
    """2 ms per step, with a token for each prompt."""
    for nth in range(MODEL_TOKENS):
        time.sleep(0.002)
        yield [f"token {nth}"] * len(prompts)


CONTINUOUS: Final[dict[str, Any]] = {
    "fill": "continuous",
    "streams": True,
    "max_batch_size": MAX_BATCH_SIZE,
}
Written = dict[shoal.OpenRequest[str, str], int]


@app.endpoint("/continuous", name="continuous", **CONTINUOUS)
async def continuous(batch: shoal.OpenBatch[str, str]) -> None:
    """The same, for prompts that join between two steps."""
    written: Written = {}
    async for joined in batch.steps():
        written |= dict.fromkeys(joined, 0)
        await to_thread.run_sync(time.sleep, 0.002)
        await send(batch, written)


@app.endpoint("/process", name="process", placement="process", **CONTINUOUS)
async def beside(batch: shoal.OpenBatch[str, str]) -> None:
    """The same in a process of its own, which a step may hold."""
    written: Written = {}
    async for joined in batch.steps():
        written |= dict.fromkeys(joined, 0)
        time.sleep(0.002)  # noqa: ASYNC251 - as a step that computes
        await send(batch, written)


async def send(batch: shoal.OpenBatch[str, str], written: Written) -> None:
    """Sends a token to each prompt, and ends the complete texts."""
    await batch.send({request: f"token {nth}" for request, nth in written.items()})
    for request, nth in list(written.items()):
        written[request] = nth + 1
        if nth + 1 == MODEL_TOKENS:
            request.finish()
        if request.ended:
            del written[request]
