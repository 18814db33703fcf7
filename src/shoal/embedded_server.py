"""An HTTP server for a controller, inside the program that holds the controller."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from shoal.asgi.http_options import APP_OPTIONS
from shoal.http.app.admin_mount import AppAdmin
from shoal.http.app.app import App
from shoal.http.app.middleware import with_middleware
from shoal.http.app.router import load_the_rest
from shoal.server.listeners import AppListener, Unix
from shoal.server.server import serve

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp

    from shoal.asgi.http_options import HttpOptions
    from shoal.serving.controller.controller import Controller


class EmbeddedServer:
    """A context manager that serves an open controller over HTTP."""

    def __init__(self, controller: Controller, options: HttpOptions) -> None:
        self.url = ""  # set on entering
        self._controller = controller
        self._options = options
        self._stopping = anyio.Event()
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = App(**{name: getattr(self._options, name) for name in APP_OPTIONS})
        wrapped = self._wrapped(app)  # first, so that a wrong middleware raises early
        try:
            await self._exit.enter_async_context(app.answering(self._controller))
            tasks = await self._exit.enter_async_context(anyio.create_task_group())
            await tasks.start(self._serve, app, wrapped)
        except BaseException:  # not passed to the exit stack, so that it raises no group
            self._stopping.set()
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        async with self._exit:
            self._stopping.set()

    async def _serve(self, served: App, wrapped: ASGIApp, *, task_status: TaskStatus[None]) -> None:
        options = self._options

        def started(url: str) -> None:
            self.url = url
            task_status.started()

        admin_listeners: list[AppListener] = []
        if options.admin_socket is not None:
            # Only the socket's owner can open it, so it needs no token.
            admin = AppAdmin(served, token=None, allowed_modules=options.allowed_modules)
            admin_listeners.append(AppListener(address=Unix(options.admin_socket), app=admin))
        await serve(
            wrapped,
            options,
            shutdown=self._shutdown,
            started=started,
            lifespan=False,
            extra_listeners=admin_listeners,
            load_later=load_the_rest,
        )

    async def _shutdown(self) -> None:
        """Waits until the context is left, or the controller shuts down."""
        async with anyio.create_task_group() as tasks:

            async def end_with_controller() -> None:
                await self._controller.wait_ending()
                self._stopping.set()

            tasks.start_soon(end_with_controller)
            await self._stopping.wait()
            tasks.cancel_scope.cancel()
        self._controller.drain()

    def _wrapped(self, served: App) -> ASGIApp:
        options = self._options
        app: ASGIApp = served
        is_own = options.uds is not None and int(options.uds_mode, 8) & 0o077 == 0
        if options.token is not None or is_own:
            app = AppAdmin(served, token=options.token, allowed_modules=options.allowed_modules)
        return with_middleware(options.middlewares, app)
