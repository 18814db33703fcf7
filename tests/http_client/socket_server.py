"""A server of the sub-protocol ``shoal.v1`` that does as it is told; an ASGI application."""

from __future__ import annotations

import json

import anyio

PROBLEM = "urn:shoal:problem:"


class SocketServer:
    """Accepts one WebSocket after the other.

    Attributes:
        received: The messages of the clients, read as JSON; binary ones as a pair of head and item.
        headers: The headers of the last handshake.
        subprotocol: What it says that it speaks.
        refuses: A status to refuse the handshake with.
        closed: Set once a client has closed its WebSocket.
    """

    def __init__(self, subprotocol="shoal.v1"):
        self.received = []
        self.headers = {}
        self.subprotocol = subprotocol
        self.refuses = []
        self.closed = anyio.Event()
        self._changed = anyio.Event()
        self.is_open = anyio.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "websocket":
            return
        self.headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        assert (await receive())["type"] == "websocket.connect"
        if self.refuses:
            await self._refuse(send, self.refuses.pop(0))
            return
        self._send = send
        await send({"type": "websocket.accept", "subprotocol": self.subprotocol})
        self.is_open.set()
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.closed.set()
                return
            if message.get("text") is not None:
                self.received.append(json.loads(message["text"]))
            else:
                head, _, item = message["bytes"].partition(b"\n")
                self.received.append((json.loads(head), item))
            self._changed.set()

    async def _refuse(self, send, status):
        problem = json.dumps({"type": f"{PROBLEM}overloaded", "title": "No", "status": status})
        headers = [(b"content-type", b"application/problem+json")]
        start = {"type": "websocket.http.response.start", "status": status, "headers": headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": problem.encode()})

    async def next(self):
        """Waits for the next message of a client, and takes it."""
        while not self.received:
            self._changed = anyio.Event()
            await self._changed.wait()
        return self.received.pop(0)

    async def say(self, **message):
        await self.say_text(json.dumps(message))

    async def say_text(self, text):
        await self._send({"type": "websocket.send", "text": text})

    async def send(self, message):
        await self._send(message)
