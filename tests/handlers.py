"""Handlers, an application and a request that many tests use."""

from collections.abc import Mapping
from typing import Any

import shoal
from shoal.testing.asgi import Answer, ask


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
