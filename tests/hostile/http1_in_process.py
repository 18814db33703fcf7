"""A server in the process of the test, whose moments the test can choose."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from shoal.asgi.http_options import HttpOptions
from shoal.server.http1.connection import Http1Connection
from shoal.server.server import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import pytest


class Listening:
    """A server that listens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.url = ""
        self.left = anyio.Event()

    def connect(self, sent: bytes) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])))
        client.sendall(sent)
        return client

    def at_expiry(self, act: Callable[[], object]) -> None:
        """Does something once when a connection's deadline has passed, before it handles that."""
        expire = Http1Connection._expire

        def act_and_expire(connection: Http1Connection) -> None:
            self._monkeypatch.setattr(Http1Connection, "_expire", expire)
            act()
            expire(connection)

        self._monkeypatch.setattr(Http1Connection, "_expire", act_and_expire)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Reads a body, and answers if it has come whole."""
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
            return
        while (message := await receive())["type"] == "http.request":
            if not message["more_body"]:
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
        self.left.set()


@asynccontextmanager
async def listening(monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Listening]:
    """Serves an application that reads a body and answers, with options of the test's choice."""
    server = Listening(monkeypatch)
    is_up, is_over = anyio.Event(), anyio.Event()

    def started(url: str) -> None:
        server.url = url
        is_up.set()

    async def run() -> None:
        given = HttpOptions(port=0, graceful_timeout_s=0.1, **options)
        await serve(server.app, given, shutdown=is_over.wait, started=started)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await is_up.wait()
        yield server
        is_over.set()
