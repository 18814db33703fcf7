"""Code that dies, is refused by a service behind it, or works on when its callers have left.

It is imported in workers.
"""

import os
import time
from collections.abc import AsyncGenerator, Generator, Iterator

import anyio

import shoal
from shoal.testing.replicas.code import Folder


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


class RefusedOnce:
    def __init__(self) -> None:
        self.runs = 0

    @shoal.accept_batch
    def __call__(self, items: list[int]) -> list[int]:
        self.runs += 1
        if self.runs == 1:
            raise shoal.RetryLater(0.02)
        return [item * 10 + self.runs for item in items]


class StreamRefusedOnce(RefusedOnce):
    @shoal.accept_batch
    def __call__(self, items: list[int]) -> Iterator[list[int]]:  # type: ignore[override]
        yield super().__call__(items)


class Code:
    def __init__(self, path: str) -> None:
        self._folder = Folder(path)

    def __call__(self, name: str) -> int:
        self._folder.note(f"holds {name}")
        self._folder.wait(name)
        return os.getpid()

    def reconfigure(self, name: str) -> None:
        self(name)

    def steps(self, name: str) -> Generator[int]:
        yield self(name)


class AsyncCode(Code):
    """Also has async code, so that the worker runs an event loop."""

    async def stubborn(self, name: str) -> int:
        with anyio.CancelScope(shield=True):
            self._folder.note(f"holds {name}")
            await self._folder.wait_async(name)
        return os.getpid()

    async def stubborn_steps(self, name: str) -> AsyncGenerator[int]:
        yield await self.stubborn(name)


class Isolated(Code):
    """Fails batches, and holds single items."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._folder.note("starts")

    def __call__(self, items: list[str]) -> list[int]:  # type: ignore[override]
        if len(items) > 1:
            raise ValueError("one at a time")
        return [super().__call__(items[0])]
