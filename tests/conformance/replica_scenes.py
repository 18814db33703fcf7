"""Scenes that Ray Serve's cases play on a controller: services that call one another."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import trio

from batching.scenes import Held
from shoal.errors import DeadlineExceeded
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle


async def service(
    controller: Controller, name: str, code: Any, *init_args: Any, **config: Any
) -> EndpointHandle:
    """Makes a backend and an endpoint ``/name`` of it, and returns the endpoint's handle."""
    await controller.create_backend(name, code, *init_args, config=config)
    await controller.create_endpoint(name, backend=name, route=f"/{name}", methods=["POST"])
    return await controller.get_handle(name)


@asynccontextmanager
async def served(code: Any, **config: Any) -> AsyncGenerator[EndpointHandle]:
    async with Controller() as controller:
        yield await service(controller, "only", code, **config)


class Passing:
    """Code that passes each item on to another service, and notes when it may not go on.

    What it calls has the deadline of who called it, so when that is past it is cancelled, or what
    it awaits is too late: either may come first.
    """

    def __init__(self, handle: EndpointHandle) -> None:
        self.handle = handle
        self.cancelled: list[list[Any]] = []

    async def __call__(self, items: list[Any]) -> list[Any]:
        try:
            return [await self.handle.call(item) for item in items]
        except (anyio.get_cancelled_exc_class(), DeadlineExceeded):
            self.cancelled.append(list(items))
            raise


@asynccontextmanager
async def chain(
    controller: Controller | None = None, *, inner: Any = None, **outer_config: Any
) -> AsyncGenerator[tuple[EndpointHandle, Passing, Held]]:
    """A service ``outer`` whose code calls ``inner``, whose code is held; and the two as one sees.

    Args:
        controller: Where; None for one of its own.
        inner: Options of the inner service.
        **outer_config: Options of the outer one.
    """
    if controller is None:
        async with Controller() as opened, chain(opened, inner=inner, **outer_config) as found:
            yield found
        return
    held = Held()
    passing = Passing(await service(controller, "inner", held, **(inner or {})))
    yield await service(controller, "outer", passing, **outer_config), passing, held


def living_tasks() -> int:
    if trio.lowlevel.in_trio_task():
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
