"""What `test_served.py` serves in processes of their own.

A client can wait for what happens in here by calling ``/when``: it is answered once that is so.
"""

from collections import Counter

import anyio
from starlette.applications import Starlette
from starlette.routing import Mount

import shoal

app = shoal.App()
site = Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)])

seen: list[list[str]] = []
happened: Counter[str] = Counter()
changed: dict[str, anyio.Event] = {}


def happen(what: str) -> None:
    happened[what] += 1
    changed.pop(what, anyio.Event()).set()


async def until(what: str) -> None:
    while not happened[what]:
        await changed.setdefault(what, anyio.Event()).wait()


@app.endpoint("/tell", max_concurrent_batches=100, max_batch_size=1)
async def tell(whats: list[str]) -> list[None]:
    happen(whats[0])
    return [None]


@app.endpoint("/when", max_concurrent_batches=100, max_batch_size=1)
async def when(whats: list[str]) -> list[bool]:
    await until(whats[0])
    return [True]


@app.endpoint("/seen", methods=("POST",), name="seen")
async def show(names: list[str]) -> list[list[list[str]]]:
    return [[batch for batch in seen if batch[0].startswith(name)] for name in names]


@app.endpoint("/double")
class Doubled:
    """A plain handler, in a thread."""

    def __init__(self) -> None:
        self.factor = 2

    def __call__(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


@app.endpoint("/together", max_batch_size=4, batch_wait_timeout_s=None)
async def together(items: list[int]) -> list[int]:
    return [len(items)] * len(items)


@app.endpoint("/held", max_batch_size=1)
async def held(names: list[str]) -> list[str]:
    """Holds a request until its name is told."""
    seen.append(names)
    happen(f"{names[0]} runs")
    await until(names[0])
    return names


@app.endpoint("/pair", max_batch_size=2, batch_wait_timeout_s=None)
async def pair(names: list[str]) -> list[str]:
    """Holds two requests until the name of one of them without its last letter is told."""
    happen(f"{names[0][:-1]} runs")
    await until(names[0][:-1])
    return names


@app.endpoint("/steps", max_batch_size=4, max_concurrent_batches=4)
async def steps(names: list[str]):
    """Yields 1, then 2 when the name is told."""
    try:
        yield [1] * len(names)
        await until(names[0])
        yield [2] * len(names)
    finally:
        happen(f"{names[0]} ended")
