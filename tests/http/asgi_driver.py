"""Drives an ASGI application message by message, as a server and its client would.

httpx's transport and Starlette's test client give a whole answer or none, so they can't show a
stream under way, a client that leaves, or one that does not read. Here each message is one step of
a test.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

JSON = ("content-type", "application/json")


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


class Call:
    """One HTTP request to an application.

    Attributes:
        sent: The messages that the application has sent so far.
        is_listening: Whether the application waits in `receive`.
        returned: Set once the application has returned.
    """

    def __init__(
        self,
        app,
        path,
        *,
        method="POST",
        item=...,
        body=None,
        headers=(),
        root_path="",
        whole=True,
        reads=True,
    ):
        if item is not ...:
            body = json.dumps(item).encode()
            headers = [JSON, *headers]
        self._app = app
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": root_path,
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.sent = []
        self.is_listening = False
        self.returned = anyio.Event()
        self.reads = anyio.Event()
        if reads:
            self.reads.set()
        self._to_app = deque()
        self._has_left = False
        self._changed = anyio.Event()
        if body is not None or whole:
            self.give(body or b"", more=not whole)

    def give(self, body, *, more):
        """Let a piece of the body arrive."""
        self._tell({"type": "http.request", "body": body, "more_body": more})

    def stop_reading(self):
        """Let the client accept nothing more."""
        self.reads = anyio.Event()

    def leave(self):
        """Let the client be gone."""
        self._has_left = True
        self._change()

    async def run(self):
        try:
            await self._app(self.scope, self._receive, self._send)
        finally:
            self.returned.set()
            self._change()

    async def until(self, condition):
        """Wait until something holds of this call."""
        while not condition(self):
            await self._changed.wait()

    async def until_sent(self, text):
        """Wait until the body that was sent has this text in it."""
        await self.until(lambda call: text in call.body)

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def is_complete(self):
        return len(self.sent) > 1 and not self.sent[-1].get("more_body", False)

    @property
    def answer(self):
        assert self.is_complete, self.sent
        return Answer(self.status, self.headers, self.body)

    async def _receive(self):
        self.is_listening = True
        try:
            while not self._to_app:
                if self._has_left or self.is_complete:
                    await anyio.lowlevel.checkpoint()
                    return {"type": "http.disconnect"}
                await self._changed.wait()
        finally:
            self.is_listening = False
        await anyio.lowlevel.checkpoint()
        return self._to_app.popleft()

    async def _send(self, message):
        await self.reads.wait()
        assert not self.is_complete, "sent after the end"
        if message["type"] == "http.response.start":
            assert not self.sent
        else:
            assert self.sent, "a body before its start"
            if not message.get("more_body", False):
                assert not self.is_listening, "still watching when the answer was completed"
        self.sent.append(message)
        self._change()
        await anyio.lowlevel.checkpoint()

    def _tell(self, message):
        self._to_app.append(message)
        self._change()

    def _change(self):
        self._changed.set()
        self._changed = anyio.Event()


async def ask(app, path, item: Any = ..., **options) -> Answer:
    """Make one request and return its answer."""
    call = Call(app, path, item=item, **options)
    await call.run()
    return call.answer


@asynccontextmanager
async def calling(*calls):
    """Run calls while the block runs; what is left of them is cancelled."""
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call.run)
        yield tasks
        tasks.cancel_scope.cancel()


class Lifespan:
    """The lifespan of an application, as a server drives it."""

    def __init__(self, app):
        self._app = app
        self.sent = []
        self.answered = anyio.Event()
        self._stop = anyio.Event()
        self._messages = deque([{"type": "lifespan.startup"}])

    async def run(self):
        await self._app({"type": "lifespan", "asgi": {"version": "3.0"}}, self._receive, self._send)

    def stop(self):
        self.answered = anyio.Event()
        self._stop.set()

    async def _receive(self):
        if self._messages:
            return self._messages.popleft()
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message):
        self.sent.append(message)
        self.answered.set()
