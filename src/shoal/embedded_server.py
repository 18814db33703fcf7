"""An HTTP server for a controller, inside the program that holds the controller."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from shoal.asgi.http_options import APP_OPTIONS, HttpOptions
from shoal.failures.exceptions import first_of, ungrouped
from shoal.http.app.admin_mount import AppAdmin
from shoal.http.app.app import App
from shoal.http.app.middleware import with_middleware
from shoal.http.app.router import load_the_rest
from shoal.server.listeners import AppAddress, Unix, bind_for_servers
from shoal.server.server import serve
from shoal.serving.model_server import model_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp

    from shoal.serving.controller.controller import Controller
    from shoal.serving.model_server.listener import ModelServerListener


@asynccontextmanager
async def serving_controller(controller: Controller, options: HttpOptions) -> AsyncGenerator[str]:
    """Serves an open controller over HTTP; yields the URL for clients."""
    app = App(**{name: getattr(options, name) for name in APP_OPTIONS})
    wrapped = _wrapped(app, options)  # first, so that a wrong middleware raises early
    stopping = anyio.Event()
    async with app.answering(controller), ungrouped() as tasks:
        try:
            yield await tasks.start(_serve, controller, app, wrapped, options, stopping)
        finally:
            stopping.set()


async def _serve(
    controller: Controller,
    app: App,
    wrapped: ASGIApp,
    options: HttpOptions,
    stopping: anyio.Event,
    *,
    task_status: TaskStatus[str],
) -> None:
    async def shutdown() -> None:
        await first_of(controller.wait_ending, stopping.wait)
        controller.drain()
        if served is not None:
            await served.leave(options.graceful_timeout_s)

    extra: list[AppAddress] = []
    if options.admin_socket is not None:
        # Only the socket's owner can open it, so it needs no token.
        admin = AppAdmin(app, token=None, allowed_modules=options.allowed_modules)
        extra.append(AppAddress(address=Unix(options.admin_socket), app=admin, is_admin=True))

    def on_listening(url: str) -> None:
        if served is not None:
            served.begin(controller)
        task_status.started(url)

    served: ModelServerListener | None
    async with model_server(options, bind_for_servers) as served:
        await serve(
            wrapped,
            options,
            shutdown=shutdown,
            on_listening=on_listening,
            lifespan=False,
            extra_addresses=extra,
            load_later=load_the_rest,
        )


def _wrapped(served: App, options: HttpOptions) -> ASGIApp:
    app: ASGIApp = served
    is_own = options.uds is not None and int(options.uds_mode, 8) & 0o077 == 0
    if options.token is not None or is_own:
        app = AppAdmin(served, token=options.token, allowed_modules=options.allowed_modules)
    return with_middleware(options.middlewares, app)
