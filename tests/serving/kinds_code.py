"""Code whose results are containers of something else, and code that sets a context variable.

Processes import it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.replicas.code.definition import accept_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

KINDS = {"frame": "or a list of rows", "pair": "named tuple", "dict": "a mapping", "set": "a set"}
"""The kinds of containers, with a part of the advice on each."""


class Pair(NamedTuple):
    """Two fields, of which one may be an exception."""

    values: Any
    indices: Any


class Frame:
    """Has what pandas' tables have, and can't be pickled."""

    columns: Any = None

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def to_dict(self) -> None:
        raise NotImplementedError

    def __reduce__(self) -> Any:
        raise NotImplementedError


def made(kind: str) -> Any:
    """Makes what the only item of a batch names."""
    if kind == "pair":
        return Pair([1], ValueError("a field"))
    return {"frame": Frame, "dict": lambda: {"a": [1]}, "set": lambda: {1}}[kind]()


@accept_batch
class Plain:
    def __call__(self, items: list[str]) -> Any:
        return made(items[0])

    def steps(self, items: list[str]) -> Iterator[Any]:
        yield made(items[0])


@accept_batch
class Async:
    async def __call__(self, items: list[str]) -> Any:
        return made(items[0])

    async def steps(self, items: list[str]) -> AsyncIterator[Any]:
        yield made(items[0])


user: ContextVar[str] = ContextVar("user", default="nobody")


def _seen(by: str) -> str:
    seen = user.get()
    user.set(by)
    return seen


class PlainSetting:
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


class Setting:
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
