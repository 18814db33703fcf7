"""Code whose results are a container of something else than results; processes import it."""

from __future__ import annotations

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
