"""A server without sockets for tests: they choose each moment, and it works in virtual time."""

import json
from contextlib import asynccontextmanager

import anyio

from shoal.asgi.headers import RequestGuard
from shoal.asgi.http_options import HttpOptions
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.timers import LoopTimers
from shoal.server.http1.connection import Http1Connection
from shoal.server.shared import Shared
from shoal.testing import settle

JSON = "Content-Type: application/json"


class Wire:
    """What a connection has in place of its socket."""

    peer = name = ("192.0.2.1", 80)

    def __init__(self):
        self.sent = b""
        self.unsent = b""
        self.takes = True
        self.is_open = True
        self.is_paused = False

    def start(self):
        pass

    def send(self, data):
        if not self.is_open:
            return True
        if self.takes:
            self.sent += data
        else:
            self.unsent += data
        return self.takes

    def pause(self):
        self.is_paused = True

    def resume(self):
        self.is_paused = False

    def has_unread(self):
        return False

    def end_sending(self):
        pass

    def close(self):
        self.is_open = False
        self.unsent = b""

    abort = close


class Client:
    """One client, and the connection that serves it.

    Attributes:
        releases: How often the place of its connection was given back.
    """

    def __init__(self, shared, wire=None):
        self.wire = wire or Wire()
        self.releases = 0
        self._connection = Http1Connection(shared, self.wire, self._released, None)
        self._connection.start()

    def _released(self):
        self.releases += 1

    def say(self, data):
        self._connection.data_received(data)

    def ask(self, path, item=..., **given):
        self.say(asked(path, item, **given))

    def leave(self):
        self._connection.client_ended()

    def read_on(self):
        """Takes what it did not read before."""
        self.wire.sent += self.wire.unsent
        self.wire.unsent = b""
        self.wire.takes = True
        self._connection.all_sent()

    @property
    def answers(self):
        """The answers that came whole: the status and the body of each."""
        answers = []
        rest = self.wire.sent
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            answers.append((int(head.split()[1]), rest[:length]))
            rest = rest[length:]
        return answers

    @property
    def statuses(self):
        return [status for status, _ in self.answers]


class ServerInMemory:
    """A running server of one address."""

    def __init__(self, app, options, parking, timeouts, tasks):
        self.tasks = tasks
        guard = RequestGuard(options, Wire.name)
        self.shared = Shared(app, options, {}, parking, timeouts, tasks, "http", guard)

    def connect(self, wire=None):
        return Client(self.shared, wire)

    async def ask(self, path, item=..., **given):
        """A client whose request has come as far as it gets."""
        client = self.connect()
        client.ask(path, item, **given)
        await settle()
        return client

    async def ask_together(self, path, *items):
        """Clients whose requests have come as far as they get."""
        clients = [self.connect() for _ in items]
        for client, item in zip(clients, items, strict=True):
            client.ask(path, item)
        await settle()
        return clients

    def counts(self):
        return self.shared.calls_started, self.shared.calls_finished

    def abort(self):
        for connection in tuple(self.shared.connections):
            connection.abort()


@asynccontextmanager
async def serving(app, **options):
    """Serves an application, whose lifespan is not run; ends once all its calls have ended."""
    parking = parking_of_this_loop()
    timeouts = LoopTimers(parking)
    async with anyio.create_task_group() as others:
        others.start_soon(timeouts.run)
        async with anyio.create_task_group() as tasks:
            server = ServerInMemory(app, HttpOptions(**options), parking, timeouts, tasks)
            try:
                yield server
            finally:
                server.abort()
        others.cancel_scope.cancel()


def asked(path, item=..., *, method=None, headers=(), version="1.1", body=b""):
    """A request, of an item as JSON if there is one."""
    if item is not ...:
        body = json.dumps(item).encode()
        headers = [JSON, *headers]
    method = method or ("POST" if body else "GET")
    lines = [f"{method} {path} HTTP/{version}", "Host: shoal.test", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
