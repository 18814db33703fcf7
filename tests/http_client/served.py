"""A server on a real socket, in the event loop of the test."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio

from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve

HANG_S = 15


@asynccontextmanager
async def served(app, *, lifespan=True, **options):
    """Serves an application; gives the URL of the server."""
    stop = anyio.Event()

    async def run(*, task_status):
        config = HttpOptions(**{"port": 0, "graceful_timeout_s": 1, **options})
        await serve(app, config, shutdown=stop.wait, started=task_status.started, lifespan=lifespan)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            url = await tasks.start(run)
            try:
                yield url
            finally:
                stop.set()
