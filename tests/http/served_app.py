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
    happen(f"{names[0]} runs")
    await until(names[0])
    return names


@app.endpoint("/hang", max_batch_size=1)
async def hang(names: list[str]) -> list[str]:
    """Holds a request until it is cancelled."""
    happen(f"{names[0]} runs")
    try:
        await anyio.sleep_forever()
    finally:
        happen(f"{names[0]} ended")
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
