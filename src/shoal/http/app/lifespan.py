"""ASGI's lifespan protocol, for an application and for the applications mounted in it."""

from __future__ import annotations

import logging
import traceback
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from shoal.asgi.lifespan import AppLifespan
from shoal.errors import NameTaken, NotAllowed, NotDurable
from shoal.failures.exceptions import failure_text, ungrouped

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp, Receive, Scope, Send


# Their messages say what to change; a traceback adds nothing.
_MISTAKES: Final = (NameTaken, NotAllowed, NotDurable)


async def run_lifespan(
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    _scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Opens and closes an application at the messages of its server."""
    # A failure is reported to the server with the user's frames, unless it is a mistake in a
    # declaration. It is not raised as well: servers would treat that as an application without
    # support for the protocol.
    await receive()
    stage = "startup"
    try:
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            stage = "shutdown"
            await receive()
    except Exception as error:
        if isinstance(error, _MISTAKES):
            message = traceback.format_exception_only(error)[-1].rstrip()
        else:
            message = failure_text(error)
        await send({"type": f"lifespan.{stage}.failed", "message": message})
    else:
        await send({"type": "lifespan.shutdown.complete"})


_STOPS_WITHIN_S: Final = 10.0
_log: Final = logging.getLogger("shoal.http")


class Mounted:
    """An application with a running lifespan, whose state is in the scopes of its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._lifespan: AppLifespan | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._lifespan is not None:
            # Middleware may have added state to this request.
            scope = {**scope, "state": {**scope.get("state", {}), **self._lifespan.state}}
        await self.app(scope, receive, send)

    async def start(self, tasks: TaskGroup) -> None:
        self._lifespan = lifespan = AppLifespan(self.app)
        tasks.start_soon(lifespan.run)
        failure = await lifespan.wait_started()
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        lifespan, self._lifespan = self._lifespan, None
        assert lifespan is not None
        await lifespan.stop(_STOPS_WITHIN_S)
        if lifespan.failure is not None:
            failure = lifespan.failure
            _log.error("a mounted application: %s", failure.details or failure)


def unwrapped(app: ASGIApp) -> ASGIApp:
    """Returns a mounted application as it was passed to `App.mount`."""
    return app.app if isinstance(app, Mounted) else app


@asynccontextmanager
async def lifespans_of(apps: Iterable[ASGIApp]) -> AsyncGenerator[None]:
    """Runs the lifespans of all `Mounted`; they start in order, and stop in reverse order."""
    mounted = [app for app in apps if isinstance(app, Mounted)]
    if not mounted:
        yield
        return
    async with ungrouped() as tasks, AsyncExitStack() as stopping:
        stopping.callback(tasks.cancel_scope.cancel)
        for app in mounted:
            await app.start(tasks)
            stopping.push_async_callback(app.stop)
        yield
