"""The floor of an ASGI server: what trio, httptools and the kernel cost, and little more.

``python -m benchmarks.http_floor MODULE:ATTRIBUTE PORT one-reader|reader-each`` serves an
application on 127.0.0.1 until SIGTERM. It has no limits, deadlines or error handling, so nobody
could expose it, and no server on trio can be much faster.

It reads in two ways. With ``reader-each``, each connection has a task that waits for its socket.
With ``one-reader``, one task reads for all connections: all sockets are in one edge-triggered epoll
object, and trio watches that object only.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httptools
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

READ_SIZE: Final = 65536
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_DISCONNECT: Final[Message] = {"type": "http.disconnect"}


def _aborted(_: object) -> Abort:
    """Allows a wait to be cancelled, which happens only when the process ends."""
    return Abort.SUCCEEDED


class _Connection:
    """One connection: its parser's callbacks, and the task that calls the application."""

    __slots__ = (
        "_app",
        "_body_is_read",
        "_body_parts",
        "_end_waiter",
        "_head",
        "_headers",
        "_is_chunked",
        "_is_complete",
        "_is_lost",
        "_parser",
        "_request_waiter",
        "_scope",
        "_url",
        "feed",
        "socket",
    )

    def __init__(self, connected: socket.socket, app: ASGIApp, scope: Scope) -> None:
        self.socket = connected
        self._app = app
        self._scope = scope
        self._parser = httptools.HttpRequestParser(self)
        self.feed = self._parser.feed_data
        self._headers: list[tuple[bytes, bytes]] = []
        self._body_parts: list[bytes] = []
        self._url = b""
        self._head = b""
        self._is_chunked = False
        self._is_complete = False
        self._body_is_read = False
        self._is_lost = False
        # The tasks that wait for the next request, and for the connection to end.
        self._request_waiter: Task | None = None
        self._end_waiter: Task | None = None

    def on_message_begin(self) -> None:
        self._headers = []
        self._body_parts = []
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body_parts.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        task = self._request_waiter
        if task is not None:
            self._request_waiter = None
            reschedule(task)

    def lose(self) -> None:
        """Notes that the client is gone."""
        self._is_lost = True
        for task in (self._request_waiter, self._end_waiter):
            if task is not None:
                reschedule(task)
        self._request_waiter = self._end_waiter = None

    def receive_waiting(self) -> bool:
        """Reads the available bytes; returns whether more may follow."""
        while True:
            try:
                data = self.socket.recv(READ_SIZE)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                self.lose()
                return False
            self.feed(data)
            if len(data) < READ_SIZE:
                return True

    async def run(self) -> None:
        """Calls the application for each request."""
        while True:
            if not self._is_complete:
                if self._is_lost:
                    break
                self._request_waiter = current_task()
                await wait_task_rescheduled(_aborted)
                continue
            self._is_complete = self._body_is_read = False
            path, _, query = self._url.partition(b"?")
            scope = dict(
                self._scope,
                method=self._parser.get_method().decode(),
                path=path.decode("ascii"),
                raw_path=path,
                query_string=query,
                headers=self._headers,
            )
            await self._app(scope, self._receive, self._send)
        self.socket.close()

    async def _receive(self) -> Message:
        if not self._body_is_read:
            self._body_is_read = True
            await trio.lowlevel.checkpoint_if_cancelled()
            body = b"".join(self._body_parts)
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._is_lost:

            def forget(_: object) -> Abort:
                self._end_waiter = None
                return Abort.SUCCEEDED

            self._end_waiter = current_task()
            await wait_task_rescheduled(forget)
        return _DISCONNECT

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            lines = [_OK if status == 200 else b"HTTP/1.1 %d Other\r\n" % status]
            self._is_chunked = True
            for name, value in message["headers"]:
                lines.append(name + b": " + value + b"\r\n")
                if name == b"content-length":
                    self._is_chunked = False
            lines.append(b"transfer-encoding: chunked\r\n\r\n" if self._is_chunked else b"\r\n")
            self._head = b"".join(lines)
            return
        body = message.get("body", b"")
        if self._is_chunked:
            if body:
                body = b"%x\r\n%s\r\n" % (len(body), body)
            if not message.get("more_body", False):
                body += b"0\r\n\r\n"
        data = self._head + body
        self._head = b""
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_lost = True
            return
        if sent < len(data):
            await self._send_rest(data[sent:])

    async def _send_rest(self, data: bytes) -> None:
        while data:
            await trio.lowlevel.wait_writable(self.socket)
            try:
                data = data[self.socket.send(data) :]
            except OSError:
                self._is_lost = True
                return


class _OneReader:
    """Reads for all connections."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}

    def add(self, connection: _Connection) -> None:
        fd = connection.socket.fileno()
        self._connections[fd] = connection
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for fd, _ in self._epoll.poll(0, 256):
                connection = self._connections.get(fd)
                if connection is not None and not connection.receive_waiting():
                    # The kernel removes the socket from the epoll object once it is closed.
                    del self._connections[fd]


async def _read(connection: _Connection) -> None:
    while connection.receive_waiting():
        await trio.lowlevel.wait_readable(connection.socket)


async def _start_application(app: ASGIApp, nursery: trio.Nursery) -> None:
    """Runs the start of the application's lifespan, which never ends."""
    started = trio.Event()
    events: list[Message] = [{"type": "lifespan.startup"}]

    async def receive() -> Message:
        if not events:
            await trio.sleep_forever()
        return events.pop()

    async def send(_: Message) -> None:
        started.set()

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    nursery.start_soon(app, scope, receive, send)
    await started.wait()


async def serve(app: ASGIApp, port: int, *, has_one_reader: bool) -> None:
    """Serves an application until the process ends."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        await _start_application(app, nursery)
        reader = _OneReader()
        if has_one_reader:
            nursery.start_soon(reader.run)
        while True:
            await trio.lowlevel.wait_readable(listener)
            connected, client = listener.accept()
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            scope: dict[str, Any] = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "scheme": "http",
                "root_path": "",
                "client": client,
                "server": ("127.0.0.1", port),
                "state": {},
                "extensions": {},
            }
            connection = _Connection(connected, app, scope)
            nursery.start_soon(connection.run)
            if has_one_reader:
                reader.add(connection)
            else:
                nursery.start_soon(_read, connection)


def main() -> None:
    """Runs the server that the command line describes."""
    name, port, reading = sys.argv[1:]
    module, _, attribute = name.partition(":")
    app: ASGIApp = getattr(importlib.import_module(module), attribute)
    has_one_reader = {"one-reader": True, "reader-each": False}[reading]
    # At once: it has no shutdown of its own.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    trio.run(partial(serve, app, int(port), has_one_reader=has_one_reader))


if __name__ == "__main__":
    main()
