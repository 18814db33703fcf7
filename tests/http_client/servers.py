"""Servers on real sockets, in the event loop of the test: their applications and answers.

The answers go with the errors that they are for the caller.
"""

from contextlib import asynccontextmanager, suppress

import anyio
import httpx
from starlette.requests import Request

import shoal
from shoal import errors
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from time_limits import HANG_S

PROBLEM = "urn:shoal:problem:"
DONE = httpx.Response(200, json="done")
NOT_THERE = httpx.ConnectError("refused")


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


class Held:
    """A handler that waits until it is let go."""

    def __init__(self):
        self.began = anyio.Event()
        self.go = anyio.Event()
        self.cancelled = anyio.Event()

    async def __call__(self, items: list[int]) -> list[int]:
        self.began.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return items


class Steps:
    """A stream that waits after its first item."""

    def __init__(self):
        self.ended = anyio.Event()

    async def __call__(self, items: list[int]):
        try:
            yield [item + 1 for item in items]
            await anyio.sleep_forever()
        finally:
            self.ended.set()


async def three(items: list[int]):
    for number in range(3):
        yield [number] * len(items)


def app_with(**handlers):
    """An application with these endpoints, each without batching."""
    app = shoal.App()
    for name, handler in handlers.items():
        app.endpoint(f"/{name}", name=name, max_batch_size=1)(handler)
    return app


def headers_of(items: list[Request]) -> list[dict]:
    return [dict(item.headers) for item in items]


def refusal(kind="overloaded", status=503, retry_after=None):
    """An answer with a problem, whose kind may be empty."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    problem = {"type": f"{PROBLEM}{kind}" if kind else "about:blank", "title": "No"}
    return httpx.Response(status, headers=headers, json=problem)


# After these the call may have run, so it is not made again.
MAY_HAVE_RUN = [
    (refusal("closed", retry_after="0"), errors.BatcherClosed),
    (refusal("replica-died", retry_after="0"), errors.ReplicaDied),
    (refusal("unavailable", retry_after="0"), errors.BackendUnavailable),
    (refusal("internal", 500), errors.HttpProblem),
    (refusal("internal", 500, "0"), errors.HttpProblem),
    (refusal("deadline-exceeded", 504), errors.DeadlineExceeded),
    (refusal("slow-reader", 408), errors.SlowReader),
    (refusal("something-new", retry_after="0"), errors.HttpProblem),
    (httpx.Response(503), errors.HttpProblem),
    (httpx.Response(429), errors.HttpProblem),
    (httpx.Response(502, headers={"retry-after": "0"}), errors.HttpProblem),
    (httpx.ReadError("reset"), ConnectionError),
    (httpx.WriteError("reset"), ConnectionError),
    (httpx.RemoteProtocolError("gone"), ConnectionError),
    (httpx.ReadTimeout("slow"), TimeoutError),
]
