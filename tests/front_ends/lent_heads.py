"""Requests of which the server begins some itself, and how often the application is called."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest
from live_server import live, read_until, request

import shoal


class Answer:
    def __init__(self, head, body):
        self.status = int(head.split()[1])
        lines = head.decode("latin-1").lower().split("\r\n")[1:]
        self.headers = dict(line.split(": ", 1) for line in lines)
        self.body = body

    def __iter__(self):
        return iter((self.status, json.loads(self.body)))

    def without_id(self):
        headers = {**self.headers}
        id_ = headers.pop("x-request-id").encode()
        del headers["content-length"]  # ids grow
        headers.pop("date", None)
        return self.status, headers, self.body.replace(id_, b"")


class Asker:
    """A connection to a server with one worker, and how often the application was called."""

    def __init__(self, client, called):
        self.client = client
        self._called = called

    async def ask(self, body, path="/x", *headers):
        await self.send(body, path, *headers)
        return await self.read()

    async def send(self, body, path="/x", *headers):
        await self.client.send_all(request(path, method="POST", body=body, headers=headers))

    async def read(self):
        head, _, body = (await read_until(self.client, b"\r\n\r\n")).partition(b"\r\n\r\n")
        answer = Answer(head, body)
        while len(answer.body) < int(answer.headers["content-length"]):
            answer.body += await self.client.receive_some()
        return answer

    async def ask_without(self, body, path="/x", *headers):
        """Asks until the application was not called, and returns that answer."""
        while True:
            before = len(self._called)
            answer = await self.ask(body, path, *headers)
            if len(self._called) == before:
                return answer
            await anyio.sleep(0.005)  # the worker builds the decoder in a thread

    async def ask_and_hold(self, held):
        """Asks until the application was not called; its handler is held from then on."""
        held.go.set()
        await self.ask_without(b"1")
        held.go = anyio.Event()
        held.batches.clear()

    async def calls_app(self, body, path="/x", *headers):
        """Asks some more times; returns whether the application is called each time."""
        before = len(self._called)
        for _ in range(3):
            await self.ask(body, path, *headers)
        return len(self._called) == before + 3


@pytest.fixture
def called(monkeypatch):
    """The paths of the requests for which applications were called."""
    call, paths = shoal.App.__call__, []

    async def counting(self, scope, receive, send):
        if scope["type"] == "http":
            paths.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(shoal.App, "__call__", counting)
    return paths


@pytest.fixture
def asking(called):
    @asynccontextmanager
    async def open_(app, outer=None, **config):
        async with (
            live(outer or app, workers=1, hang_s=60, **config) as server,
            await server.connect() as client,
        ):
            asker = Asker(client, called)
            asker.server = server
            yield asker

    return open_


def app_of(handler, name="x", app=None, **options):
    app = app or shoal.App()
    app.endpoint("/x", name=name, methods=("POST",), **options)(handler)
    return app


async def same(items: list[int]) -> list[int]:
    return items
