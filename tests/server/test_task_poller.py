"""The server on a platform without epoll: a task for each socket."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import h2.events
import pytest
from echo_app import EchoApp
from live_server import (
    HANG_S,
    Http2Client,
    live,
    read_all,
    read_until,
    request,
    until_quiet,
    upgrade,
)
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import TextMessage

from shoal.server.sockets.transport import TaskPoller
from shoal.server.streams.connection import StreamConnection
from worker_processes import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

PIECE = bytes(range(256)) * 2**8
PIECES = 2**8
LAST = b"the last bytes"


@pytest.fixture(autouse=True)
def pollers(monkeypatch):
    """Has each server use such a poller; gives those that were made."""
    made = []

    def make(_parking):
        made.append(TaskPoller())
        return made[-1]

    monkeypatch.setattr("shoal.server.server.new_poller", make)
    monkeypatch.setattr("shoal.server.shared.Shared.late_request_s", 0.05)
    return made


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


async def turns(count):
    """Lets each task that is ready run so many times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


# What is answered.


async def test_a_connection_is_kept_between_requests():
    async with live(EchoApp()) as server, await server.connect() as client:
        for word in (b"once", b"again", b"thrice"):
            await client.send_all(request("/", method="POST", body=word))
            assert await read_until(client, word)


async def test_pipelined_requests_are_answered_in_order():
    words = [b"word%d" % number for number in range(20)]
    sent = b"".join(request("/", method="POST", body=word) for word in words)
    async with live(EchoApp()) as server:
        answers = await server.talk(sent + request("/", close=True))
    assert answers.count(b"HTTP/1.1 200") == 21
    places = [answers.index(b"\r\n\r\n" + word) for word in words]
    assert places == sorted(places)


async def test_more_requests_than_are_held_are_all_answered():
    async with live(EchoApp()) as server, await server.connect() as client:
        count = 3000
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send_all, request("/") * count + request("/", close=True))
            assert (await read_all(client)).count(b"HTTP/1.1 200") == count + 1


async def test_a_chunked_body_arrives_whole():
    chunked = request("/", method="POST", headers=["Transfer-Encoding: chunked"], close=True)
    async with live(EchoApp()) as server, await server.connect() as client:
        for piece in (chunked, b"3\r\nab", b"c\r\n3", b"\r\ndef\r\n", b"0\r\n", b"\r\n"):
            await client.send_all(piece)
            await turns(3)
        assert (await read_all(client)).endswith(b"\r\n\r\nabcdef")


async def test_an_upload_waits_in_the_kernel_until_the_application_reads():
    async def upload():
        head = request("/late", method="POST", headers=[f"Content-Length: {len(PIECE) * PIECES}"])
        await client.send_all(head)
        for _ in range(PIECES):
            await client.send_all(PIECE)
        await client.send_all(request("/", close=True))
        is_sent.set()

    app = Uploads()
    is_sent = anyio.Event()
    async with (
        live(app) as server,
        await server.connect() as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(upload)
        await app.entered.wait()
        await until_quiet()
        assert not is_sent.is_set()
        app.release.set()
        assert (await read_all(client)).count(b"HTTP/1.1 200") == 2
    assert app.sizes == [len(PIECE) * PIECES, 0]


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


async def test_a_stream_is_sent_as_it_is_made():
    app = EchoApp()
    async with live(app) as server, await server.connect() as client:
        await client.send_all(request("/begin"))
        assert (await read_until(client, b"begun")).startswith(b"HTTP/1.1 200")
        app.release.set()
        await read_until(client, b"ended\r\n0\r\n\r\n")


async def test_http2_and_websocket_are_served():
    async with live(EchoApp()) as server:
        async with await server.connect() as stream:
            client = Http2Client(stream)
            asked = client.ask(b"/")
            await client.flush()
            assert (await client.wait_for(h2.events.DataReceived, asked)).data == b"hello"
        async with await server.connect() as client:
            await client.send_all(upgrade())
            await read_until(client, b"\r\n\r\n")
            peer = WebSocket(ConnectionType.CLIENT)
            await client.send_all(peer.send(TextMessage("ahoy")))
            peer.receive_data(await client.receive_some())
            assert [event.data for event in peer.events()] == ["ahoy"]


# Clients that leave.


@pytest.mark.parametrize("behind", [b"", b"X", b"\r\n", request("/")])
async def test_a_client_that_leaves_is_noticed(behind):
    app = Uploads()
    async with live(app, max_connections=1) as server:
        async with await server.connect() as client:
            await client.send_all(request("/disconnect") + behind)
            await app.entered.wait()
        await app.left.wait()
        assert await server.answers()


async def test_a_client_that_breaks_off_its_upload_is_noticed():
    app = Uploads()
    async with live(app, max_connections=1) as server:
        async with await server.connect() as client:
            await client.send_all(request("/", method="POST", headers=["Content-Length: 9"]) + b"x")
            await app.entered.wait()
        await app.left.wait()
        assert await server.answers()
    assert app.disconnects == 1


async def test_a_client_that_leaves_behind_more_than_is_held_is_noticed_when_it_is_answered():
    """While reading is paused, its end is not seen."""
    app = EchoApp()
    async with live(app, max_connections=1) as server:
        async with await server.connect() as client:
            await client.send_all(request("/hold") + request("/fail") + b"x" * 2**17)
            await app.entered.wait()
            await until_quiet()
        await until_quiet()
        assert app.running == 1
        app.release.set()
        await app.left.wait()
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
        await turns(100)
        assert len(ends) == 1
        app.release.set()
        await app.left.wait()
        await read_all(client)


# The end.


async def test_shutdown_waits_for_the_answer_and_for_nothing_else():
    app = EchoApp()
    patient = live(app, keep_alive_timeout_s=HANG_S * 2, graceful_timeout_s=HANG_S * 2)
    async with patient as server, await server.connect() as idle, await server.connect() as client:
        await idle.send_all(request("/"))
        await read_until(idle, b"hello")
        await client.send_all(request("/hold"))
        await until_quiet()
        server.stop.set()
        assert await read_all(idle) == b""
        assert app.running == 1
        app.release.set()
        assert (await read_all(client)).endswith(b"held")
    assert (server.drained.finished, server.drained.cut) == (1, 0)


async def test_shutdown_closes_by_force_what_does_not_finish():
    app = EchoApp()
    impatient = live(app, graceful_timeout_s=0.05, send_timeout_s=HANG_S * 2)
    async with (
        impatient as server,
        await server.connect() as client,
        await server.connect() as unread,
        await server.connect() as uploading,
    ):
        await client.send_all(request("/forever"))
        await unread.send_all(request("/flood"))
        head = request("/forever", method="POST", headers=[f"Content-Length: {10 * len(PIECE)}"])
        await uploading.send_all(head + PIECE * 3)
        await until_quiet()
        server.stop.set()
        assert (await read_all(client)).startswith(b"HTTP/1.1 503")
        assert (await read_all(uploading)).startswith(b"HTTP/1.1 503")
        await until(lambda: server.drained is not None)  # until then there is more to read
        assert (await read_all(unread)).endswith(b"<reset>")
    assert (server.drained.finished, server.drained.cut) == (0, 3)


async def test_a_client_that_does_not_read_is_closed_by_force(caplog):
    app = EchoApp()
    async with live(app, send_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(request("/flood"))
        await app.left.wait()
        assert (await read_all(client)).endswith(b"<reset>")
        assert await server.answers()
    assert caplog.records == []


async def test_cancelling_the_server_closes_everything():
    app = EchoApp()
    with anyio.fail_after(HANG_S), anyio.CancelScope() as scope:
        async with live(app, send_timeout_s=HANG_S * 2) as server:
            clients = [await server.connect() for _ in range(3)]
            await clients[0].send_all(request("/flood"))
            await clients[1].send_all(request("/hold"))
            await until_quiet()
            scope.cancel()
    for client in clients:
        assert (await read_all(client)).endswith(b"<reset>")
        await client.aclose()
    assert app.running == 0


async def test_connections_that_come_and_go_leave_nothing(pollers):
    """The kernel gives the number of a closed socket to the next one."""
    async with live(EchoApp(), max_connections=4) as server:
        asked = [request(f"/{name}") for name in ("", "disconnect", "flood")]
        openings = [b"", b"G", *asked]
        for number in range(200):
            server.connect_now(openings[number % len(openings)]).close()
            await turns(number % 4)
        assert await server.answers()
        (polling,) = pollers
        with anyio.fail_after(HANG_S / 4):
            while polling._again or polling._sending or watching():
                await anyio.lowlevel.checkpoint()


def watching():
    """How many tasks watch a socket."""
    return sum("TaskPoller._run" in str(task.name) for task in anyio.get_running_tasks())
