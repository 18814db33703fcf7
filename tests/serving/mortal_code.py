"""Code that dies in several ways; it is imported in workers."""

import os
import time
from collections.abc import Generator

import anyio

import shoal


class Mortal:
    def __init__(self, flag: str) -> None:
        self._is_healthy = True
        if os.path.exists(flag):
            os._exit(3)

    @shoal.accept_batch
    def __call__(self, items: list[str]) -> list[int]:
        for item in items:
            self._die(item)
        return [os.getpid() for _ in items]

    @shoal.accept_batch
    def steps(self, items: list[str]) -> Generator[list[int]]:
        yield [os.getpid() for _ in items]
        for item in items:
            self._die(item)

    def reconfigure(self, how: str) -> None:
        self._die(how)

    def health(self) -> bool:
        return self._is_healthy

    def _die(self, how: str) -> None:
        if how == "exits":
            os._exit(3)
        if how == "hangs":
            time.sleep(1000)
        if how == "is unhealthy":
            self._is_healthy = False


class Noting:
    def __init__(self, ledger: str) -> None:
        self._ledger = ledger

    async def __call__(self, items: list[int]) -> list[int]:
        await anyio.sleep(0.005)
        with open(self._ledger, "a", encoding="utf-8") as ledger:  # noqa: ASYNC230 - a few bytes
            ledger.write("".join(f"{item}\n" for item in items))
        return items
