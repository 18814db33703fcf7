"""Constant load on an endpoint, and what may answer it while all behind it changes.

Every backend runs `Versioned` code, which answers with what it was asked, and who answered. So an
answer that is a neighbour's, or of a backend that was never sent traffic, is seen at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from shoal.batching.current import current_backend_tag

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator


class Versioned:
    """Code that takes up to as long as it is told to, and answers with its backend's tag."""

    def __init__(self, random: random.Random, longest_s: float = 0.3) -> None:
        self._random = random
        self._longest_s = longest_s
        self.config: Any = None

    def reconfigure(self, config: Any) -> None:
        self.config = config

    async def __call__(self, items: list[int]) -> list[tuple[int, str]]:
        await anyio.sleep(self._random.uniform(0, self._longest_s))
        return [(item, current_backend_tag()) for item in items]

    async def steps(self, items: list[int]) -> AsyncGenerator[list[tuple[int, str, int]], None]:
        for step in range(3):
            await anyio.sleep(self._random.uniform(0, self._longest_s / 3))
            yield [(item, current_backend_tag(), step) for item in items]
