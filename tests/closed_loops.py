"""Callers in closed loops or at random, and a handler that notes how its batches were formed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

import shoal

if TYPE_CHECKING:
    from shoal.core.request import DispatchReason

RUN_S = 0.01
THINK_S = 0.002
STEPS = 4


class Sizes:
    """A handler, or a generator handler, that notes its batches.

    Attributes:
        sizes: Their sizes.
        reasons: Why they were dispatched.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.reasons: list[DispatchReason] = []

    async def results(self, items: list[int]) -> list[int]:
        self._note(items)
        await anyio.sleep(RUN_S + 0.0001 * len(items))
        return items

    async def steps(self, items: list[int]) -> Any:
        self._note(items)
        for _ in range(STEPS):
            await anyio.sleep(RUN_S / STEPS)
            yield items

    def _note(self, items: list[int]) -> None:
        self.sizes.append(len(items))
        self.reasons.append(shoal.current_batch().reason)

    def mean(self) -> float:
        """The mean size while all call, without the batches in which the rule learned."""
        count = len(self.sizes)
        settled = self.sizes[count // 2 : count - count // 20]
        return sum(settled) / len(settled)


async def think(number: int, nth: int, callers: int) -> None:
    """Waits as a caller does before its nth call, in the mean for `THINK_S`."""
    await anyio.sleep(THINK_S * (0.5 + (number * 7 + nth * 3) % callers / callers))
