"""A small ASGI application that the server's tests drive, over HTTP and WebSocket."""

import anyio

PATHS = [
    *("early", "hold", "begin", "forever", "flood", "unread", "pour", "disconnect", "fail"),
    "interrupt",
]


class EchoApp:
    """Answers with what it was sent; some paths misbehave.

    Events are set, not counted in time: a test waits for the one it needs.
    """

    def __init__(self):
        self.running = 0
        self.entered = anyio.Event()
        self.release = anyio.Event()
        self.left = anyio.Event()
        self.lifespan_events = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.lifespan(scope, receive, send)
            return
        self.running += 1
        self.entered.set()
        try:
            if scope["type"] == "websocket":
                await self.websocket(receive, send)
            else:
                name = scope["path"].strip("/")
                await getattr(self, name if name in PATHS else "echo")(scope, receive, send)
        finally:
            self.running -= 1
            self.left.set()

    async def lifespan(self, scope, receive, send):
        while True:
            event = (await receive())["type"]
            self.lifespan_events.append(event)
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    async def echo(self, scope, receive, send):
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await self.answer(send, 200, body or b"hello")

    async def early(self, scope, receive, send):
        await self.answer(send, 413, b"too large")

    async def hold(self, scope, receive, send):
        await self.release.wait()
        await self.answer(send, 200, b"held")

    async def begin(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await self.release.wait()
        await send({"type": "http.response.body", "body": b"ended"})

    async def forever(self, scope, receive, send):
        await anyio.sleep_forever()

    async def flood(self, scope, receive, send):
        """More than any socket buffer takes, until the server says that the client is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.cancel_on_disconnect, receive, tasks.cancel_scope)
            while True:
                await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})

    async def pour(self, scope, receive, send):
        """Much, without ever asking whether the client is there."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})

    async def unread(self, scope, receive, send):
        """Answers without reading its body, and goes on sending until it is released."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.release.is_set():
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await anyio.lowlevel.checkpoint()

    async def disconnect(self, scope, receive, send):
        """Reads on after the disconnect."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnects = [(await receive())["type"] for _ in range(3)]

    async def fail(self, scope, receive, send):
        raise RuntimeError("the application's own mistake")

    async def interrupt(self, scope, receive, send):
        raise KeyboardInterrupt

    async def websocket(self, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": message["text"]})

    async def cancel_on_disconnect(self, receive, scope):
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def answer(self, send, status, body):
        length = str(len(body)).encode()
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-length", length)],
            }
        )
        await send({"type": "http.response.body", "body": body})
