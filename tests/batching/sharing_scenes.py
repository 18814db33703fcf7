"""A handler whose calls may be shared, and the readers of its streams."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

import shoal

A_MINUTE = shoal.Cache(max_size=9, ttl_s=60)


class Second:
    """A handler that takes a second, and notes its items."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.cancelled = 0

    async def results(self, items: list[Any]) -> list[Any]:
        self.items += items
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return [ValueError(item) if item == "bad" else ("result", item) for item in items]

    async def steps(self, items: list[Any]) -> Any:
        self.items += items
        try:
            for nth in range(4):
                await anyio.sleep(1)
                yield [f"{item}.{nth}" for item in items]
                if "bad" in items and nth == 1:
                    raise ValueError("bad")
        except (anyio.get_cancelled_exc_class(), GeneratorExit):
            self.cancelled += 1
            raise


def opened(handler: Any, **options: Any) -> shoal.Batcher[Any]:
    return shoal.Batcher(handler, **{"dedupe": True, "max_batch_size": 64} | options)


def balanced(batcher: shoal.Batcher[Any], calls: int) -> None:
    """Checks that each call was counted once."""
    counts = batcher.statistics()
    assert (
        counts.finished
        + counts.failed
        + counts.cancelled
        + counts.expired
        + counts.rejected
        + counts.shed
        == calls
    )


@asynccontextmanager
async def sharing(
    kind: str = "results", *, calls: int | None = None, **options: Any
) -> AsyncGenerator[tuple[Second, Any, Any, Any]]:
    """Opens a batcher of a `Second`, with tasks for callers; in the end each call was counted."""
    handler = Second()
    batcher = opened(getattr(handler, kind), **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        yield handler, batcher, call, tasks
    if calls is not None:
        balanced(batcher, calls)


WHOLE = ["a.0", "a.1", "a.2", "a.3"]
