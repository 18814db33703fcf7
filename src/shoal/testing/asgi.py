"""Drives an ASGI application message by message, as a server and its client would.

httpx's transport and Starlette's test client return only whole responses, so they can't show a
running stream, a client that disconnects, or one that does not read. Here each message is one step
of a test. No sockets are used, so it works in virtual time.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp, Message, Scope

_NOTHING: Any = ...
_JSON = ("content-type", "application/json")


@dataclass(frozen=True)
class Answer:
    """A complete response.

    Attributes:
        status: The HTTP status.
        headers: The headers by lower-case name.
        body: The body.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body decoded as JSON."""
        return json.loads(self.body)


class Call:
    """One HTTP request to an application, and its response.

    Nothing happens until `run` is called, or the call is run by `calling`.

    Args:
        app: The application.
        path: The path, not encoded; may have a query after a question mark.
        method: The HTTP method.
        item: A value to send as JSON; nothing by default.
        body: A body to send as it is.
        headers: More headers, as pairs of name and value.
        root_path: The path at which the application is mounted.
        whole: Whether `body` is the whole body; if not, `give` sends the rest.
        reads: Whether the client reads the response; if not, it starts when `read` is called.

    Attributes:
        scope: The ASGI scope.
        sent: The messages that the application has sent so far.
        is_listening: Whether the application waits in `receive`.
        listened_to_the_end: Whether it waited there when it completed the response.
        returned: Set once the application has returned.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        *,
        method: str = "POST",
        item: Any = _NOTHING,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        root_path: str = "",
        whole: bool = True,
        reads: bool = True,
    ) -> None:
        if item is not _NOTHING:
            body = json.dumps(item).encode()
            headers = [_JSON, *headers]
        path, _, query = path.partition("?")
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": query.encode(),
            "root_path": root_path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.sent: list[Message] = []
        self.is_listening = False
        self.listened_to_the_end = False
        self.returned = anyio.Event()
        self._app = app
        self._reads = anyio.Event()
        if reads:
            self._reads.set()
        self._to_app: deque[Message] = deque()
        self._has_left = False
        self._changed = anyio.Event()
        if body is not None or whole:
            self.give(body or b"", more=not whole)

    async def run(self) -> None:
        """Makes the request, and waits until the application has returned.

        Raises:
            Exception: What the application raised; a server would respond with status 500.

        Cancellation: cancels the application, as a stopping server does.
        """
        try:
            await self._app(self.scope, self._receive, self._send)
        finally:
            self.returned.set()
            self._change()

    def give(self, body: bytes, *, more: bool) -> None:
        """Sends a chunk of the body.

        Args:
            body: The chunk.
            more: Whether more chunks follow.
        """
        self._to_app.append({"type": "http.request", "body": body, "more_body": more})
        self._change()

    def read(self) -> None:
        """Makes the client read the response."""
        self._reads.set()

    def stop_reading(self) -> None:
        """Makes the client stop reading."""
        self._reads = anyio.Event()

    def leave(self) -> None:
        """Disconnects the client."""
        self._has_left = True
        self._change()

    async def until(self, condition: Callable[[Call], object]) -> None:
        """Waits until a condition of this call holds; checks it whenever the call changes.

        Raises:
            AssertionError: The application has returned, and the condition does not hold.
        """
        while not condition(self):
            if self.returned.is_set():
                raise AssertionError(f"the application has returned; it has sent {self.sent}")
            await self._changed.wait()

    async def until_sent(self, text: bytes) -> None:
        """Waits until the body sent so far contains this text.

        Raises:
            AssertionError: The application has returned without sending it.
        """
        await self.until(lambda call: text in call.body)

    @property
    def status(self) -> int | None:
        """The status of the response; None until it has started."""
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response by lower-case name."""
        return {name.decode().lower(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """The body sent so far."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def is_complete(self) -> bool:
        """Whether the whole response was sent."""
        return len(self.sent) > 1 and not self.sent[-1].get("more_body", False)

    @property
    def answer(self) -> Answer:
        """The complete response.

        Raises:
            AssertionError: It is not complete.
        """
        if self.status is None or not self.is_complete:
            raise AssertionError(f"the response is not complete: {self.sent}")
        return Answer(self.status, self.headers, self.body)

    async def _receive(self) -> Message:
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

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        if self.is_complete:
            raise AssertionError(f"a message was sent after the end of the response: {message}")
        if (message["type"] == "http.response.start") != (not self.sent):
            raise AssertionError(f"a response must have one start, as its first message: {message}")
        self.sent.append(message)
        self.listened_to_the_end = self.is_listening and self.is_complete
        self._change()
        await anyio.lowlevel.checkpoint()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


async def ask(app: ASGIApp, path: str, item: Any = _NOTHING, **options: Any) -> Answer:
    """Makes one request and returns its response.

    Args:
        app: The application.
        path: The path, not encoded; may have a query after a question mark.
        item: A value to send as JSON; nothing by default.
        **options: The other arguments of a `Call`.

    Raises:
        AssertionError: The application returned without a complete response.
    """
    call = Call(app, path, item=item, **options)
    await call.run()
    return call.answer


@asynccontextmanager
async def calling(*calls: Call) -> AsyncGenerator[TaskGroup]:
    """Runs calls during a block, and cancels unfinished calls at its end."""
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call.run)
        yield tasks
        tasks.cancel_scope.cancel()
