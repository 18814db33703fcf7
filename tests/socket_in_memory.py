"""A WebSocket to an ASGI application, message by message, without a server."""

import json
from collections import deque
from contextlib import asynccontextmanager

import anyio

OFFERED = "shoal.disconnect"


class Offered:
    """What the server of this package offers to a WebSocket."""

    def __init__(self):
        self.left = self.draining = None
        self.cut_off = False

    def be_offered_to(self, socket):
        async def send_texts(texts):
            for text in texts:
                await socket._send({"type": "websocket.send", "text": text})

        socket.scope["extensions"][OFFERED] = {
            "send_texts": send_texts,
            "when_left": lambda callback: setattr(self, "left", callback),
            "when_draining": lambda callback: setattr(self, "draining", callback),
            "is_cut_off": lambda: self.cut_off,
            "send_timeout_s": 10,
        }


class Socket:
    """A client's WebSocket.

    Attributes:
        unread: What the client has sent, and the application has not received.
        sent: The messages of ASGI that the application has sent.
        reads: Set while the client reads; the application's sends wait meanwhile if not.
        returned: Set once the application has returned.
    """

    def __init__(self, app, path, *, subprotocols=("shoal.v1",), headers=(), server=None, **more):
        self.scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "subprotocols": list(subprotocols),
            "client": ("127.0.0.1", 1),
            "server": server,
            "extensions": {"websocket.http.response": {}},
            **more,
        }
        self._app = app
        self.unread = deque([{"type": "websocket.connect"}])
        self._said = anyio.Event()
        self.sent = deque()
        self._changed = anyio.Event()
        self.reads = anyio.Event()
        self.reads.set()
        self.returned = anyio.Event()

    async def run(self):
        await self._app(self.scope, self._receive, self._send)
        self.returned.set()

    async def _receive(self):
        while not self.unread:
            self._said = anyio.Event()
            await self._said.wait()
        return self.unread.popleft()

    def _give(self, message):
        self.unread.append(message)
        self._said.set()

    async def _send(self, message):
        await self.reads.wait()
        self.sent.append(message)
        self._changed.set()

    async def message(self):
        """The next message of ASGI."""
        while not self.sent:
            self._changed = anyio.Event()
            await self._changed.wait()
        return self.sent.popleft()

    async def read(self):
        """The next message of the sub-protocol."""
        message = await self.message()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def closed(self):
        """The code and the reason that it is closed with."""
        message = await self.message()
        assert message["type"] == "websocket.close", message
        return message["code"], message["reason"]

    def say(self, message=None, **members):
        """Sends a message: text, bytes, or members of an object."""
        message = json.dumps(members) if message is None else message
        kind = "text" if isinstance(message, str) else "bytes"
        self._give({"type": "websocket.receive", kind: message})

    def say_each(self, *numbers):
        """Makes a request for each number, which is its id and its item."""
        for number in numbers:
            self.say(id=number, item=number)

    async def ask(self, message=None, **members):
        """Sends a message, and returns the next one of the sub-protocol."""
        self.say(message, **members)
        return await self.read()

    def leave(self):
        self._give({"type": "websocket.disconnect", "code": 1006})


@asynccontextmanager
async def opened(app, path, offered=None, **more):
    """An open WebSocket to an application that is open."""
    async with anyio.create_task_group() as tasks:
        socket = Socket(app, path, **more)
        if offered is not None:
            offered.be_offered_to(socket)
        tasks.start_soon(socket.run)
        accepted = await socket.message()
        assert accepted == {"type": "websocket.accept", "subprotocol": "shoal.v1"}
        yield socket
        socket.leave()
