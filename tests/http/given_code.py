"""Code that is given handles by its annotations; its processes import it."""

from typing import Annotated

import shoal


async def embed(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


async def tenfold(text: str, embed: shoal.Handle) -> int:
    return 10 * await embed.call(text)


def hundredfold(text: str, other: Annotated[shoal.Handle, "embed"]) -> int:
    return 100 * other.sync.call(text)


async def one_more(texts: list[str], *, embed: shoal.Handle) -> list[int]:
    return [1 + await embed.call(text) for text in texts]


class Sum:
    """Is given one handle when it is made, and one for each call."""

    def __init__(self, embed: shoal.Handle, factor: int = 3) -> None:
        self.embed = embed
        self.factor = factor

    async def __call__(self, text: str, tenfold: shoal.Handle) -> int:
        return self.factor * await self.embed.call(text) + await tenfold.call(text)

    async def only(self, text: str, tenfold: shoal.Handle) -> int:
        return await tenfold.call(text)


class Hasty:
    """Calls its handle when it is made."""

    def __init__(self, embed: shoal.Handle) -> None:
        self.size = embed.sync.call("abc")

    def __call__(self, text: str) -> int:
        return self.size


async def counted(numbers: list[int], steps: shoal.Handle):
    async with steps.stream(numbers[0]) as stream:
        async for step in stream:
            yield [step]


async def steps(number: int):
    for step in range(number):
        yield step
