"""Code that runs in several of Ray's actors."""

import os
from importlib import import_module
from typing import Any

import anyio.to_thread

import shoal


class Shard:
    """One of two parts of a model."""

    def pid(self) -> int:
        """The process that it runs in."""
        return os.getpid()

    def add(self, items: list[int]) -> list[int]:
        """Its part of the work."""
        return [item + 1 for item in items]


class Sharded:
    """Has its model in two actors, each with a CPU."""

    def __init__(self) -> None:
        ray: Any = import_module("ray")
        shard_class = ray.remote(num_cpus=1)(Shard)
        self.shards = [shard_class.remote() for _ in range(2)]
        self._get = ray.get
        # As models do that connect their shards with each other.
        self.pids = [self._get(shard.pid.remote()) for shard in self.shards]

    def __call__(self, items: list[int]) -> list[int]:
        for shard in self.shards:
            items = self._get(shard.add.remote(items))
        return items

    def where(self, items: list[Any]) -> list[list[int]]:
        """The processes of the shards."""
        return [self.pids for _ in items]


class ShardedSteps(Sharded):
    async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:  # type: ignore[override]
        """Streams what the shards make of an item, step by step, until its caller leaves."""
        async for _ in batch.steps():
            active = batch.active
            items = [request.item for request in active]
            made = await anyio.to_thread.run_sync(super().__call__, items)
            await batch.send(dict(zip(active, made, strict=True)))
