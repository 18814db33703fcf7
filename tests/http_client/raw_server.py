"""A server of bytes on a real socket, for what no server of HTTP would send."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress

import anyio

HANG_S = 15


@asynccontextmanager
async def raw_server(answer):
    """Serves connections by an async function of a stream of bytes; gives the URL."""

    async def serve(stream):
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await answer(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    with anyio.fail_after(HANG_S):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                tasks.cancel_scope.cancel()
