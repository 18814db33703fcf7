"""Backends of Ray Serve's cases that run in processes, and say in a folder what happens to them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio

from shoal.errors import DeadlineExceeded
from shoal.testing.replicas.code import Folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator


class Held:
    """Async code that works until it is let go.

    Args:
        folder: Where it says so.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Folder(folder)

    async def __call__(self, items: list[str]) -> list[str]:
        for item in items:
            self._folder.note(f"runs {item}")
        try:
            await self._folder.wait_async(items[0])
        except anyio.get_cancelled_exc_class():
            for item in items:
                self._folder.note(f"cancelled {item}")
            raise
        return items

    async def steps(self, items: list[str]) -> AsyncGenerator[list[str], None]:
        """Yields the items, and once more when it is let go."""
        try:
            yield items
            await self._folder.wait_async(items[0])
            yield items
        finally:
            self._folder.note(f"closed {items[0]}")

    async def pid(self, items: list[str]) -> list[int]:
        """Says in which process it runs."""
        return [os.getpid()] * len(items)


class PlainHeld:
    """The same of plain code."""

    def __init__(self, folder: str) -> None:
        self._folder = Folder(folder)

    def __call__(self, items: list[str]) -> list[str]:
        for item in items:
            self._folder.note(f"runs {item}")
        self._folder.wait(items[0])
        return items

    def steps(self, items: list[str]) -> Generator[list[str]]:
        """Yields the items again and again."""
        try:
            while True:
                yield items
        finally:
            self._folder.note(f"closed {items[0]}")

    def pid(self, items: list[str]) -> list[int]:
        """Says in which process it runs."""
        return [os.getpid()] * len(items)


class Passing:
    """Async code that passes each item on to another service.

    Args:
        folder: Where it says what happens.
        handle: The other service.
    """

    def __init__(self, folder: str, handle: Any) -> None:
        self._folder = Folder(folder)
        self._handle = handle

    async def __call__(self, items: list[str]) -> list[str]:
        try:
            return [await self._handle.call(item) for item in items]
        except (anyio.get_cancelled_exc_class(), DeadlineExceeded):
            # Of a deadline that both have, either of the two hears first.
            self._folder.note(f"cancelled {items[0]}")
            raise


class PlainPassing:
    """The same of plain code, which can't be cancelled while it waits: its process ends."""

    def __init__(self, folder: str, handle: Any) -> None:
        self._folder = Folder(folder)
        self._handle = handle

    def __call__(self, items: list[str]) -> list[str]:
        for item in items:
            self._folder.note(f"passes {item}")
        return [self._handle.sync.call(item) for item in items]
