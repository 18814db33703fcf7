"""Callers in closed loops, and a handler that notes how well its batches are filled."""

from __future__ import annotations

from typing import Any

import anyio

RUN_S = 0.01
THINK_S = 0.002
STEPS = 4


class Sizes:
    """A handler, or a generator handler, that notes the sizes of its batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def results(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        await anyio.sleep(RUN_S + 0.0001 * len(items))
        return items

    async def steps(self, items: list[int]) -> Any:
        self.sizes.append(len(items))
        for _ in range(STEPS):
            await anyio.sleep(RUN_S / STEPS)
            yield items

    def mean(self) -> float:
        """The mean size while all call, without the batches in which the rule learned."""
        count = len(self.sizes)
        settled = self.sizes[count // 2 : count - count // 20]
        return sum(settled) / len(settled)


async def think(number: int, nth: int, callers: int) -> None:
    """Waits as a caller does before its nth call, in the mean for `THINK_S`."""
    await anyio.sleep(THINK_S * (0.5 + (number * 7 + nth * 3) % callers / callers))
