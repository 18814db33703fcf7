"""Code for continuous batches that runs in processes; it is imported there."""

import os
from typing import Any

import anyio

import shoal


async def answers_slowly(batch: shoal.OpenBatch[int, int]) -> None:
    async def answer(request: Any) -> None:
        await anyio.sleep(0.01)
        request.finish(request.item)

    async with anyio.create_task_group() as tasks:
        async for request in batch:
            tasks.start_soon(answer, request)


async def writes(batch: shoal.OpenBatch[str, Any]) -> None:
    """Streams its process id first, and then goes on until the caller leaves."""
    texts: dict[Any, int] = {}
    async for joined in batch.steps():
        texts |= dict.fromkeys(joined, 0)
        texts = {request: number for request, number in texts.items() if not request.ended}
        await batch.send({text: number or os.getpid() for text, number in texts.items()})
        texts = {request: number + 1 for request, number in texts.items()}
        await anyio.sleep(0.001)
