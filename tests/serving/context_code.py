"""Code that tells what a context variable holds, and then sets it; processes import it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from shoal.replicas.code.definition import accept_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

user: ContextVar[str] = ContextVar("user", default="nobody")


def _seen(by: str) -> str:
    seen = user.get()
    user.set(by)
    return seen


class Plain:
    def __init__(self) -> None:
        _seen("the constructor")

    def warm_up(self) -> None:
        _seen("warm_up")

    def reconfigure(self, _user_config: object) -> None:
        _seen("reconfigure")

    def health(self) -> None:
        _seen("health")

    @accept_batch
    def __call__(self, items: list[str]) -> list[str]:
        return [_seen(item) for item in items[:1]] * len(items)

    def one(self, item: str) -> str:
        return _seen(item)

    def steps(self, item: str) -> Iterator[str]:
        yield _seen(item)
        yield _seen("a step")


class Async:
    def __init__(self) -> None:
        _seen("the constructor")

    async def warm_up(self) -> None:
        _seen("warm_up")

    async def reconfigure(self, _user_config: object) -> None:
        _seen("reconfigure")

    async def health(self) -> None:
        _seen("health")

    @accept_batch
    async def __call__(self, items: list[str]) -> list[str]:
        return [_seen(item) for item in items[:1]] * len(items)

    async def one(self, item: str) -> str:
        return _seen(item)

    async def steps(self, item: str) -> AsyncIterator[str]:
        yield _seen(item)
        yield _seen("a step")
