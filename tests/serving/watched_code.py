"""Code whose results can be watched, to see who keeps them.

It is imported in workers, so not what takes long to import.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import shoal


class Thing:
    """An item that can be watched, here and in another process."""


@shoal.accept_batch
async def in_a_task(things: list[Any]) -> list[Any]:
    return [Thing() for _ in things]


@shoal.accept_batch
def plain(things: list[Any]) -> list[Any]:
    return [Thing() for _ in things]


async def one(thing: Any) -> Any:
    return Thing()


@shoal.accept_batch
async def steps(things: list[Any]) -> AsyncIterator[list[Any]]:
    yield [Thing() for _ in things]


@shoal.accept_batch
def plain_steps(things: list[Any]) -> Iterator[list[Any]]:
    yield [Thing() for _ in things]


@shoal.accept_batch
async def failing(things: list[Any]) -> list[Any]:
    raise ValueError("no")


@shoal.accept_batch
def plainly_failing(things: list[Any]) -> list[Any]:
    raise ValueError("no")


@shoal.accept_batch
async def failing_steps(things: list[Any]) -> AsyncIterator[list[Any]]:
    yield [Thing() for _ in things]
    raise ValueError("no")
