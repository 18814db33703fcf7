"""Servers on real sockets, in the event loop of the test."""

from contextlib import asynccontextmanager, suppress

import anyio

from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from time_limits import HANG_S


@asynccontextmanager
async def served(app, **options):
    """Serves an application; gives the URL of the server."""
    stop = anyio.Event()

    async def run(*, task_status):
        config = HttpOptions(**{"port": 0, "graceful_timeout_s": 1, **options})
        await serve(app, config, shutdown=stop.wait, on_listening=task_status.started)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            url = await tasks.start(run)
            try:
                yield url
            finally:
                stop.set()


@asynccontextmanager
async def raw_server(answer):
    """Serves connections by an async function of a stream of bytes; gives the URL."""

    async def serve_one(stream):
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await answer(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    with anyio.fail_after(HANG_S):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve_one)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                tasks.cancel_scope.cancel()
