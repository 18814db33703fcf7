"""Constant load on an endpoint, and what may answer it while all behind it changes.

Every backend runs `Versioned` code, which answers with what it was asked, and who answered. So an
answer that is a neighbour's, or of a backend that was never sent traffic, is seen at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from shoal.batching.current import current_backend_tag
from shoal.errors import ShoalError

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator

    from shoal.serving.controller.controller import Controller


class Versioned:
    """Code that takes up to as long as it is told to, and answers with its backend's tag.

    Args:
        random: Where its times come from.
        longest_s: The longest time that a batch takes, in seconds.
    """

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


class Load:
    """Callers that call an endpoint again and again, and check what they get.

    Attributes:
        asked: How many calls were made.
        answered: How many of them had their own right answer.
        failed: What the others ended with.
        used: The backends that answers may be of.
    """

    def __init__(self, controller: Controller, endpoint: str, random: random.Random) -> None:
        self._controller = controller
        self._endpoint = endpoint
        self._random = random
        self._is_over = False
        self.asked = 0
        self.answered = 0
        self.failed: list[Exception] = []
        self.used: set[str] = set()

    def stop(self) -> None:
        """Has the callers make no further call."""
        self._is_over = True

    async def run(self, callers: int) -> None:
        """Calls, until it is stopped and all calls have ended."""
        async with anyio.create_task_group() as tasks:
            for number in range(callers):
                tasks.start_soon(self._call_on, number)

    async def _call_on(self, number: int) -> None:
        while not self._is_over:
            await anyio.sleep(self._random.uniform(0, 0.1))
            await self.call(number)

    async def call(self, number: int) -> None:
        """Makes one call: every fourth caller's is a stream, every third's has a shard key."""
        item = self.asked
        self.asked += 1
        try:
            handle = await self._controller.get_handle(self._endpoint)
            if number % 3 == 0:
                handle = handle.options(shard_key=str(item % 7))
            if number % 4 == 0:
                async with handle.options(method_name="steps").stream(item) as stream:
                    got = [step async for step in stream]
                assert [(at, step) for at, _, step in got] == [(item, 0), (item, 1), (item, 2)]
                tags = {tag for _, tag, _ in got}
            else:
                answer = await handle.call(item)
                assert answer[0] == item
                tags = {answer[1]}
        except ShoalError as error:
            self.failed.append(error)
            return
        assert len(tags) == 1
        assert tags <= self.used
        self.answered += 1
