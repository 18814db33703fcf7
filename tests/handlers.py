"""Handlers, an application and a request that many tests use."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import shoal
from shoal.testing.asgi import Answer, Call, ask, calling


async def echo(items: list[int]) -> list[int]:
    return items


async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def app_of(
    handler: Any, path: str = "/x", *, settings: Mapping[str, Any] | None = None, **options: Any
) -> shoal.App:
    app = shoal.App(**(settings or {}))
    app.endpoint(path, **options)(handler)
    return app


async def ask_once(app: shoal.App, *asked: Any, **options: Any) -> Answer:
    """Opens an application for one request."""
    async with app.lifespan():
        return await ask(app, *asked, **options)


@asynccontextmanager
async def asking(
    app: shoal.App, path: str, *items: Any, **options: Any
) -> AsyncGenerator[list[Call]]:
    """Opens an application, and makes a call with each item during a block."""
    calls = [Call(app, path, item=item, **options) for item in items]
    async with app.lifespan(), calling(*calls):
        yield calls


async def ask_together(app: shoal.App, path: str, *items: Any) -> list[Call]:
    """Opens an application for calls at once; returns them once all have returned."""
    async with asking(app, path, *items) as calls:
        for call in calls:
            await call.returned.wait()
    return calls
