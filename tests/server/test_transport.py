"""A transport and its pollers: those of epoll, and tasks where a platform has no epoll."""

import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from echo_app import EchoApp
from live_server import live, read_all, read_until, request, until_quiet, upgrade
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import TextMessage

from shoal.loops.this_loop import parking_of_this_loop
from shoal.server import transport as transport_module
from shoal.server.streams.connection import StreamConnection
from shoal.server.transport import EpollPoller, Receiver, TaskPoller, Transport, new_poller
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

POLLERS = ["tasks", *(["epoll"] if sys.platform == "linux" else [])]
PIECE = bytes(2**20)
each_kind = pytest.mark.parametrize("kind", POLLERS)


class NotingEnds(Receiver):
    """Notes when all was sent, and when the connection was lost."""

    def __init__(self):
        self.room = anyio.Event()
        self.lost = anyio.Event()

    def all_sent(self):
        self.room.set()

    def data_received(self, data):
        pass

    def client_ended(self):
        pass

    def connection_lost(self):
        self.lost.set()


class Mistaken(NotingEnds):
    """Makes a mistake at each report but that of the connection's end."""

    def data_received(self, data):
        raise LookupError("a mistake of the server's")

    client_ended = all_sent = lambda self: self.data_received(b"")


@asynccontextmanager
async def running_poller(kind="tasks"):
    poller = EpollPoller(parking_of_this_loop()) if kind == "epoll" else TaskPoller()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poller.run)
            await anyio.wait_all_tasks_blocked()
            yield poller
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(poller, receiver=None):
    ours, theirs = socket.socketpair()
    theirs.settimeout(HANG_S / 4)
    with theirs:
        transport = Transport(ours, poller)
        transport.receiver = receiver = receiver or NotingEnds()
        transport.start()
        yield transport, receiver, theirs
        transport.close()


def read_some(client):
    """All that the kernel has for the client now."""
    client.setblocking(False)
    received = b""
    while True:
        try:
            received += client.recv(2**16)
        except BlockingIOError:
            return received


async def read_until_room(client, receiver):
    received = b""
    while not receiver.room.is_set():
        received += read_some(client)
        await anyio.lowlevel.checkpoint()
    return received + read_some(client)


def fill(transport):
    """Sends what the kernel takes whole; returns how much that was."""
    sent = 0
    while transport.has_room():
        assert transport.send(b"x" * 2**10)
        sent += 2**10
    return sent


@each_kind
async def test_a_transport_without_room_keeps_nothing_and_tells_when_there_is_room(kind):
    async with running_poller(kind) as poller, connected(poller) as (transport, receiver, client):
        sent = fill(transport)
        assert sent
        transport.pause()  # to read or not changes nothing
        transport.resume()
        await anyio.wait_all_tasks_blocked()
        assert transport.is_blocked
        assert not transport.unsent
        assert len(await read_until_room(client, receiver)) == sent
        assert not transport.is_blocked
        assert transport.has_room()


@each_kind
async def test_what_is_sent_meanwhile_comes_behind_it_and_copies_nothing(kind):
    async with running_poller(kind) as poller, connected(poller) as (transport, receiver, client):
        large = b"a" * 2**24
        assert not transport.send(large)
        assert not transport.send(b"b" * 100)
        assert not transport.send(b"c" * 100)
        assert transport.unsent.obj is large
        received = await read_until_room(client, receiver)
        assert received == large + b"b" * 100 + b"c" * 100
        assert not transport.is_blocked


@each_kind
async def test_what_was_sent_may_be_changed_afterwards(kind):
    async with running_poller(kind) as poller, connected(poller) as (transport, receiver, client):
        piece = bytearray(b"a" * 2**24)
        assert not transport.send(piece)
        piece.clear()  # fails while there is a view
        assert await read_until_room(client, receiver) == b"a" * 2**24


@each_kind
async def test_a_closed_transport_has_room(kind):
    async with running_poller(kind) as poller, connected(poller) as (transport, _, _):
        fill(transport)
        transport.close()
        assert transport.has_room()
        assert not transport.is_blocked


def read_to_end(client):
    with client.makefile("rb") as received:
        return received.read()


@pytest.mark.parametrize("report", ["data", "end", "sent"])
async def test_an_error_in_a_connection_ends_that_alone(report, caplog):
    async with running_poller() as poller:
        async with connected(poller, Mistaken()) as (transport, mistaken, client):
            if report == "data":
                client.send(b"x")
            elif report == "end":
                client.shutdown(socket.SHUT_WR)
            else:
                assert not transport.send(PIECE)
                await anyio.to_thread.run_sync(read_to_end, client)
            await mistaken.lost.wait()
            assert not transport.is_open
        async with connected(poller) as (transport, receiver, client):  # it goes on
            fill(transport)
            await read_until_room(client, receiver)
    assert [record.getMessage() for record in caplog.records] == ["an error ended a connection"]


async def test_what_is_sent_when_all_was_sent_is_sent_too():
    """Two tasks must not wait for one socket, which the event loops refuse."""

    class Eager(NotingEnds):
        sends = 5

        def all_sent(self):
            while self.sends:
                self.sends -= 1
                if not transport.send(PIECE):
                    return
            transport.close()

    async with running_poller() as poller, connected(poller, Eager()) as (transport, eager, client):
        eager.all_sent()
        received = await anyio.to_thread.run_sync(read_to_end, client)
    assert len(received) == 5 * len(PIECE)


def watching():
    return sum("TaskPoller._run" in str(task.name) for task in anyio.get_running_tasks())


async def test_a_connection_that_is_closed_while_reading_is_paused_leaves_no_task():
    async with running_poller() as poller, connected(poller) as (transport, _, _):
        transport.pause()
        await until_quiet()
        assert watching() == 1
        transport.close()
        await until_quiet()
        assert watching() == 0


async def test_what_is_sent_after_the_end_of_the_poller_is_kept_by_the_transport():
    """As by an application that is cancelled with the server, and has a last word."""
    async with running_poller() as poller:
        pass
    async with connected(poller) as (transport, _, _):
        assert not transport.send(PIECE)
        assert transport.is_open


WITHOUT_EPOLL = """
import select
for name in dir(select):
    if name.lower().startswith("epoll") or name == "POLLRDHUP":
        delattr(select, name)
import asyncio, functools, urllib.request
import anyio, shoal

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})

async def main():
    async with anyio.create_task_group() as tasks:
        [url] = await tasks.start(functools.partial(shoal.serve, app, port=0))
        print(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))
        tasks.cancel_scope.cancel()

asyncio.run(main())
"""


def test_a_server_without_epoll_serves():
    ran = subprocess.run([sys.executable, "-c", WITHOUT_EPOLL], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("b'served'\n", "")


async def test_platforms_without_epoll_have_it(monkeypatch):
    assert isinstance(new_poller(parking_of_this_loop()), EpollPoller)
    monkeypatch.delattr(transport_module.select, "epoll")
    assert isinstance(new_poller(parking_of_this_loop()), TaskPoller)


PART = bytes(range(256)) * 2**8
LAST = b"the last bytes"


class Uploads(EchoApp):
    """Reads bodies, but those sent to ``/late`` only when it is released."""

    disconnects = 0

    async def echo(self, scope, receive, send):
        if scope["path"] == "/late":
            await self.release.wait()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            more = message["more_body"]
        await self.answer(send, 200, b"read")


async def let_run(count):
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@pytest.mark.usefixtures("task_pollers")
async def test_a_download_waits_until_the_client_reads():
    body = PART * 2**8 + LAST

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


@pytest.mark.usefixtures("task_pollers")
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


@pytest.mark.usefixtures("task_pollers")
async def test_a_client_that_leaves_while_its_upload_waits_is_noticed_when_it_is_read():
    app = Uploads()
    async with live(app, max_connections=1) as server:
        async with await server.connect() as client:
            length = 10 * len(PART)
            head = request("/late", method="POST", headers=[f"Content-Length: {length}"])
            await client.send_all(head + PART * 3)
            await app.entered.wait()
            await until_quiet()
        await until_quiet()
        assert app.running == 1
        app.release.set()
        await app.left.wait()
        assert await server.answers()
    assert app.disconnects == 1


@pytest.mark.usefixtures("task_pollers")
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
