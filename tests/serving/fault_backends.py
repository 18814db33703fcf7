"""The code that faults are aimed at: it does what an order among its items says.

An item is a number and an order; most have the order "". An order spoils the batch that it is in.
What the code has answered it writes into a file, from whichever process it runs in, so that an item
that was run twice is found.
"""

import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from shoal.batching.current import current_backend_tag

Item: TypeAlias = tuple[int, str]
Answer: TypeAlias = tuple[int, str]

STEPS = 3


class Boom(Exception):
    """What the code raises when it is ordered to."""


def illness(ledger: str, tag: str) -> Path:
    """Names the file that makes the replicas of a backend ill, as long as it is there."""
    return Path(f"{ledger}.{tag}.ill")


class _Served:
    """What plain and async code share."""

    def __init__(self, ledger: str, work_s: float) -> None:
        self._ledger = ledger
        self._work_s = work_s
        self._config: dict[str, Any] = {}

    def _start_s(self) -> float:
        if self._config.get("start") == "fail":
            raise Boom(f"{current_backend_tag()} does not start")
        return self._config.get("start_s", 0.0)

    def _check(self) -> None:
        if illness(self._ledger, current_backend_tag()).exists():
            raise Boom(f"{current_backend_tag()} is ill")

    def _obey(self, items: list[Item]) -> bool:
        """Does what the orders among the items say, and says whether to hang."""
        orders = {order for _, order in items}
        if "raise" in orders:
            raise Boom(f"{current_backend_tag()} was ordered to raise")
        return "hang" in orders

    def _answers(self, items: list[Item]) -> list[Any]:
        tag = current_backend_tag()
        answers = [(number, tag) for number, _ in items]
        return answers[1:] if any(order == "short" for _, order in items) else answers

    def _note(self, items: list[Item]) -> None:
        with open(self._ledger, "a", encoding="utf-8") as ledger:
            ledger.write("".join(f"{number}\n" for number, _ in items))


class Served(_Served):
    """Async code."""

    async def reconfigure(self, config: dict[str, Any]) -> None:
        self._config = config

    async def warm_up(self) -> None:
        await anyio.sleep(self._start_s())

    async def health(self) -> None:
        self._check()

    async def __call__(self, items: list[Item]) -> list[Answer]:
        await anyio.sleep(self._work_s)
        if self._obey(items):
            await anyio.sleep_forever()
        self._note(items)
        return self._answers(items)

    async def steps(self, items: list[Item]) -> AsyncGenerator[list[Answer], None]:
        yield [(number, current_backend_tag()) for number, _ in items]
        for _ in range(STEPS - 1):
            await anyio.sleep(self._work_s / STEPS)
            if self._obey(items):
                await anyio.sleep_forever()
            yield self._answers(items)
        self._note(items)


class PlainServed(_Served):
    """Plain code."""

    def reconfigure(self, config: dict[str, Any]) -> None:
        self._config = config

    def warm_up(self) -> None:
        time.sleep(self._start_s())

    def health(self) -> None:
        self._check()

    def __call__(self, items: list[Item]) -> list[Answer]:
        time.sleep(self._work_s)
        if self._obey(items):
            time.sleep(3600)
        self._note(items)
        return self._answers(items)

    def steps(self, items: list[Item]) -> Generator[list[Answer]]:
        yield [(number, current_backend_tag()) for number, _ in items]
        for _ in range(STEPS - 1):
            time.sleep(self._work_s / STEPS)
            if self._obey(items):
                time.sleep(3600)
            yield self._answers(items)
        self._note(items)
