"""The server on a platform without epoll, where a task watches each socket.

Tests with the fixture `each_poller` run there, too.
"""

import anyio
import pytest
from echo_app import EchoApp
from live_server import live, read_all, read_until, request, until_quiet, upgrade
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import TextMessage

from shoal.server.streams.connection import StreamConnection
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("task_pollers")]

PIECE = bytes(range(256)) * 2**8
PIECES = 2**8
LAST = b"the last bytes"


class Uploads(EchoApp):
    """Reads bodies, but those sent to ``/late`` only when it is released."""

    def __init__(self):
        super().__init__()
        self.sizes = []
        self.disconnects = 0

    async def echo(self, scope, receive, send):
        if scope["path"] == "/late":
            await self.release.wait()
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            size += len(message["body"])
            more = message["more_body"]
        self.sizes.append(size)
        await self.answer(send, 200, b"read")


async def let_run(count):
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def test_a_download_waits_until_the_client_reads():
    body = PIECE * PIECES + LAST

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await EchoApp().answer(send, 200, body if scope["path"] == "/slow" else b"short")
            answered.append(scope["path"])

    answered = []
    async with live(app) as server, await server.connect() as client:
        for number in (1, 2):
            await client.send_all(request("/slow"))
            await until_quiet()
            assert answered == ["/other", "/slow"] * (number - 1)
            await server.talk(request("/other", close=True))
            pieces = [await read_until(client, b"\r\n\r\n")]
            while not pieces[-1].endswith(LAST):
                pieces.append(await client.receive_some())
            assert b"".join(pieces).endswith(b"\r\n\r\n" + body)
    assert answered == ["/other", "/slow"] * 2


async def test_a_client_that_leaves_behind_more_than_is_held_is_noticed_when_it_is_answered(echo):
    """While reading is paused, its end is not seen."""
    async with live(echo, max_connections=1) as server:
        async with await server.connect() as client:
            await client.send_all(request("/hold") + request("/fail") + b"x" * 2**17)
            await echo.entered.wait()
            await until_quiet()
        await until_quiet()
        assert echo.running == 1
        echo.release.set()
        await echo.left.wait()
        assert await server.answers()


async def test_a_client_that_leaves_while_its_upload_waits_is_noticed_when_it_is_read():
    app = Uploads()
    async with live(app, max_connections=1) as server:
        async with await server.connect() as client:
            length = 10 * len(PIECE)
            head = request("/late", method="POST", headers=[f"Content-Length: {length}"])
            await client.send_all(head + PIECE * 3)
            await app.entered.wait()
            await until_quiet()
        await until_quiet()
        assert app.running == 1
        app.release.set()
        await app.left.wait()
        assert await server.answers()
    assert app.disconnects == 1


async def test_the_end_of_a_client_is_reported_once_while_its_messages_wait(monkeypatch):
    """The end of what a client sends stays readable: a task that waits for that would spin."""

    class Deaf(EchoApp):
        async def websocket(self, receive, send):
            await receive()
            await send({"type": "websocket.accept"})
            await self.release.wait()

    def note_end(connection):
        ends.append(connection)
        has_ended.set()
        client_ended(connection)

    client_ended = StreamConnection.client_ended
    monkeypatch.setattr(StreamConnection, "client_ended", note_end)
    ends = []
    has_ended = anyio.Event()
    app = Deaf()
    async with live(app, max_connections=1) as server, await server.connect() as client:
        await client.send_all(upgrade())
        await read_until(client, b"\r\n\r\n")
        peer = WebSocket(ConnectionType.CLIENT)
        await client.send_all(b"".join(peer.send(TextMessage("x")) for _ in range(50)))
        await client.send_eof()
        await has_ended.wait()
        await let_run(100)
        assert len(ends) == 1
        app.release.set()
        await app.left.wait()
        await read_all(client)


async def test_connections_that_come_and_go_leave_nothing(task_pollers):
    """The kernel gives the number of a closed socket to the next one."""
    async with live(EchoApp(), max_connections=4) as server:
        asked = [request(f"/{name}") for name in ("", "disconnect", "flood")]
        openings = [b"", b"G", *asked]
        for number in range(200):
            server.connect_now(openings[number % len(openings)]).close()
            await let_run(number % 4)
        assert await server.answers()
        (polling,) = task_pollers
        with anyio.fail_after(HANG_S / 4):
            while polling._again or polling._sending or watching():
                await anyio.lowlevel.checkpoint()


def watching():
    return sum("TaskPoller._run" in str(task.name) for task in anyio.get_running_tasks())
