"""A handler whose calls may be shared, and the readers of its streams."""

from __future__ import annotations

from typing import Any

import anyio

import shoal


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


async def read(call: Any, item: str, most: int = 9999) -> list[Any]:
    """Reads a stream; its error is its last item."""
    got: list[Any] = []
    try:
        async with call(item) as stream:
            async for one in stream:
                got.append(one)
                if len(got) == most:
                    break
    except Exception as error:
        got.append(error)
    return got


WHOLE = ["a.0", "a.1", "a.2", "a.3"]
