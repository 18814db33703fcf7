"""An async Ray actor that many tasks call with one text each; its batches are Shoal's.

python -m examples.inside.ray_actor
"""

from __future__ import annotations

import asyncio

import ray

import shoal
from examples.inside.model import Model


class BatchedModel:
    """Takes one text at a time. It is no actor, so a program may use it without Ray as well."""

    def __init__(self) -> None:
        self.model = Model()

    @shoal.batch(max_batch_size=64)
    def measure(self, texts: list[str]) -> list[int]:
        return self.model(texts)


# Ray starts at most this number of calls at the same time, so allow two batches of them.
@ray.remote(num_cpus=0, max_concurrency=128)
class Lengths:
    def __init__(self) -> None:
        self.batched = BatchedModel()
        # Ray runs the constructor of an actor with async methods in its event loop.
        self.opened = asyncio.Event()
        self.block = asyncio.create_task(self.keep_open())

    async def keep_open(self) -> None:
        async with shoal.open_batchers():
            self.opened.set()
            await asyncio.Event().wait()

    async def length(self, text: str) -> int:
        await self.opened.wait()
        return await self.batched.measure(text)

    async def sizes(self) -> list[int]:
        return self.batched.model.sizes


def main() -> None:
    actor = Lengths.remote()  # type: ignore[attr-defined]
    texts = ["a" * number for number in range(1, 257)]
    lengths = ray.get([actor.length.remote(text) for text in texts])
    sizes = ray.get(actor.sizes.remote())
    print(f"{len(lengths)} calls, the longest text has {max(lengths)} characters")
    print(f"{len(sizes)} batches, the largest of {max(sizes)}")


if __name__ == "__main__":
    main()
