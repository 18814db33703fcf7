"""Serving an application inside a program that runs an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from shoal.errors import LifespanFailed
from shoal.server.log_errors import contained
from shoal.server.server import serve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp

    from shoal.asgi.http_options import HttpOptions


async def serve_application(
    app: ASGIApp,
    options: HttpOptions,
    shutdown_trigger: Callable[[], Awaitable[object]] | None,
    task_status: TaskStatus[list[str]],
) -> None:
    async def shutdown() -> None:
        await (anyio.sleep_forever if shutdown_trigger is None else shutdown_trigger)()
        begin_drain = getattr(app, "begin_drain", None)
        if callable(begin_drain):
            with contained("begin_drain failed"):
                begin_drain()

    drained = await serve(
        app, options, shutdown=shutdown, started=lambda url: task_status.started([url])
    )
    if drained.failure is not None:
        raise LifespanFailed(drained.failure.partition("\n")[0], details=drained.failure)
