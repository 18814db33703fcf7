"""Streams in a browser, without a library: by EventSource, and by WebSocket.

Run it with ``shoal serve examples.browser.app:app`` and open http://127.0.0.1:8000/.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Route

import shoal

app = shoal.App()


@app.endpoint("/count", max_batch_size=16, max_concurrent_batches=4)
async def count(numbers: list[int]) -> AsyncIterator[list[object]]:
    """Counts for all who have asked, each up to its own number."""
    for step in range(max(numbers)):
        yield [step + 1 if step < number else shoal.END for number in numbers]
        await anyio.sleep(0.01)


@app.endpoint("/square", max_batch_size=16)
async def square(numbers: list[int]) -> list[int]:
    """Squares the numbers of all who have asked."""
    return [number * number for number in numbers]


async def page(_request: object) -> FileResponse:
    """The page, which uses the endpoints."""
    return FileResponse(Path(__file__).with_name("page.html"))


app.mount("/", Starlette(routes=[Route("/", page)]))
