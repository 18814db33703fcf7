"""An application of plain handlers, and handlers that tell what became of their calls."""

import anyio
from starlette.requests import Request

import shoal


class Held:
    """A handler that waits until it is let go."""

    def __init__(self):
        self.began = anyio.Event()
        self.go = anyio.Event()
        self.cancelled = anyio.Event()

    async def __call__(self, items: list[int]) -> list[int]:
        self.began.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return items


class Steps:
    """A stream that waits after its first item."""

    def __init__(self):
        self.ended = anyio.Event()

    async def __call__(self, items: list[int]):
        try:
            yield [item + 1 for item in items]
            await anyio.sleep_forever()
        finally:
            self.ended.set()


async def three(items: list[int]):
    for number in range(3):
        yield [number] * len(items)


def app_with(**handlers):
    """An application with these endpoints, each without batching."""
    app = shoal.App()
    for name, handler in handlers.items():
        app.endpoint(f"/{name}", name=name, max_batch_size=1)(handler)
    return app


def headers_of(items: list[Request]) -> list[dict]:
    return [dict(item.headers) for item in items]
