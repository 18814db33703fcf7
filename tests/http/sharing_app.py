"""An application whose calls take seconds and may be shared."""

from typing import Any

import anyio

import shoal
from shoal.testing.asgi import ask

CACHE = shoal.Cache(max_size=10, ttl_s=60)


class Slow:
    """An application whose endpoints take a second; notes the items."""

    def __init__(self, *, middleware: Any = (), **options: Any) -> None:
        self.items: list[Any] = []
        self.app = shoal.App(middleware=middleware)
        options = {"max_batch_size": 8, "placement": "task"} | options
        self.app.endpoint("/unary", **options)(self.unary)
        self.app.endpoint("/stream", **options)(self.stream)
        self.app.endpoint("/of/{name}", **options)(self.of)

    async def unary(self, items: list[dict[str, int]]) -> list[dict[str, int]]:
        self.items += items
        await anyio.sleep(1)
        return [{"twice": 2 * item["value"]} for item in items]

    async def of(self, items: list[int]) -> list[int]:
        self.items += items
        await anyio.sleep(1)
        return items

    async def stream(self, items: list[dict[str, int]]) -> Any:
        self.items += items
        for nth in range(2):
            await anyio.sleep(1)
            yield [f"{item['value']}.{nth}" for item in items]


async def asked_together(app: shoal.App, *requests: tuple[str, Any, dict[str, str]]) -> list[Any]:
    bodies: list[Any] = [None] * len(requests)

    async def one(nth: int, path: str, item: Any, headers: dict[str, str]) -> None:
        answer = await ask(app, path, item, headers=headers.items())
        bodies[nth] = answer.body if path == "/stream" else answer.json()

    async with anyio.create_task_group() as tasks:
        for nth, request in enumerate(requests):
            tasks.start_soon(one, nth, *request)
    return bodies
