"""Endpoints of each protocol, for the tests of what carries them."""

from collections import defaultdict
from threading import Event
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray  # read at run time
from openai_app import embed, upper, words

import shoal


class Held:
    """Streams its item, and then waits until it is cancelled.

    Attributes:
        left: Set when the request with that item has ended; for any thread.
    """

    def __init__(self) -> None:
        self.left = defaultdict[int, Event](Event)

    async def __call__(self, items: list[int]):
        try:
            yield items
            await anyio.sleep_forever()
        finally:
            self.left[items[0]].set()


def carried_app() -> shoal.App:
    app = shoal.App(protocols=["oip", "openai"], title="Carried")
    for handler in (words, upper, embed):
        app.endpoint(f"/{handler.__name__}", name=handler.__name__)(handler)
    app.held = Held()
    app.endpoint("/held", name="held", max_batch_size=1)(app.held)
    app.runs = []

    @app.endpoint("/count", name="count")
    async def count(number: list[int]):
        app.runs.append(number)
        for step in range(max(number)):
            yield [step if step < one else shoal.END for one in number]

    @app.endpoint("/double", name="double")
    def double(x: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        return [2 * one for one in x]

    @app.endpoint("/any", name="any")
    async def anything(items: list[Any]) -> list[Any]:
        return items

    @app.endpoint("/raw", name="raw")
    async def raw(items: list[bytes]) -> list[bytes]:
        return [item[::-1] for item in items]

    return app
