"""Code whose work ends when it is released; it is imported in workers."""

import os
from collections.abc import AsyncGenerator, Generator

import anyio

from shoal.testing.replicas.code import Folder


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
