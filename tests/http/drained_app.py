"""What `test_end_to_end.py` serves: work that ends once the drain has begun."""

from collections.abc import AsyncIterator

import anyio

import shoal

draining = anyio.Event()


class DrainedApp(shoal.App):
    """Says on standard output when the drain begins."""

    def begin_drain(self) -> None:
        super().begin_drain()
        print("draining", flush=True)
        draining.set()


app = DrainedApp()


@app.endpoint("/work", name="work", max_batch_size=4)
async def work(items: list[str]) -> list[str]:
    await draining.wait()
    return items


@app.endpoint("/held", name="held", max_batch_size=1)
async def held(names: list[str]) -> list[str]:
    await anyio.sleep_forever()
    return names


@app.endpoint("/steps", name="steps", max_batch_size=1)
async def steps(names: list[str]) -> AsyncIterator[list[str]]:
    """Yields the name, and once more when the drain begins."""
    yield names
    await draining.wait()
    yield names
