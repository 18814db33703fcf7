"""WebSockets on a server without sockets: the order of messages, turns, and ends."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest
from live_server import upgrade
from pydantic import BaseModel, model_validator
from server_in_memory import Wire
from server_in_memory import serving as served_in_memory
from test_websocket_limits import framed
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Ping, TextMessage

import shoal
from handlers import app_of, double
from shoal.http.websocket import connection
from shoal.server.http1.connection import Http1Connection
from shoal.server.server import switch_protocol
from shoal.testing import settle

AT_ONCE = 64


class SocketWire(Wire):
    """What a connection has in place of its socket, and who handles what comes."""

    receiver = None
    unread = b""

    @property
    def is_blocked(self):
        return bool(self.unsent)

    def has_room(self):
        return not self.unsent

    def has_unread(self):
        return bool(self.unread)

    def read_now(self):
        unread, self.unread = self.unread, b""
        self.receiver.data_received(unread)


class SocketClient:
    """A client whose WebSocket is open."""

    def __init__(self, server, path="/x"):
        self.server = server
        self.wire = SocketWire()
        self.releases = 0
        http1 = Http1Connection(server.shared, self.wire, self._released, switch_protocol)
        http1.start()
        head = upgrade("Sec-WebSocket-Protocol: shoal.v1")
        http1.data_received(head.replace(b"GET / ", b"GET %b " % path.encode()))
        self._frames = Connection(ConnectionType.CLIENT)
        self._has_head = False

    @classmethod
    async def opened(cls, server):
        """One that has sent a first message, which wsproto reads."""
        client = cls(server)
        await settle()
        client.say_data(framed(b"", opcode=10))
        await settle()
        return client

    def _released(self):
        self.releases += 1

    def say_data(self, data):
        self.wire.receiver.data_received(data)

    def say(self, **members):
        self.say_data(framed(json.dumps(members).encode()))

    def events(self):
        """What has come since the last call."""
        sent, self.wire.sent = self.wire.sent, b""
        if not self._has_head:
            sent = sent.partition(b"\r\n\r\n")[2]
            self._has_head = True
        self._frames.receive_data(sent)
        return list(self._frames.events())

    def messages(self):
        return [json.loads(each.data) for each in self.events() if isinstance(each, TextMessage)]

    def read_on(self):
        """Takes what it did not read before."""
        self.wire.sent += self.wire.unsent
        self.wire.unsent = b""
        self.wire.takes = True
        self.wire.receiver.all_sent()


@asynccontextmanager
async def opened(app, **options):
    """A client of an application whose lifespan is open."""
    async with app.lifespan(), served_in_memory(app, **options) as server:
        yield await SocketClient.opened(server)


async def test_messages_are_handled_in_their_order_however_they_come():
    batches = []

    async def noted(items: list[int]) -> list[int]:
        batches.append(items)
        return items

    app = app_of(noted, max_batch_size=6, batch_wait_timeout_s=1)
    async with opened(app) as client:
        client.say(id=1, item=1)
        client.say(id=2, item=2)
        client.say_data(framed(b'{"id":3,"item":' + b" " * 5000 + b"3}"))
        client.say(id=4, item=4)
        last = framed(b'{"id":5,"item":5}')
        client.say_data(last[:9])
        await anyio.lowlevel.checkpoint()
        client.say_data(last[9:])
        client.say(id=6, item=6)
        await settle()
        assert batches == [[1, 2, 3, 4, 5, 6]]
        assert sorted(each["result"] for each in client.messages()) == [1, 2, 3, 4, 5, 6]


class Receiving:
    """An ASGI application that receives messages until the client is gone."""

    def __init__(self):
        self.taken = []
        self.received = []
        self.reads = anyio.Event()
        self.reads.set()

    async def __call__(self, scope, receive, send):
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "shoal.v1"})
        while not self.received or self.received[-1]["type"] != "websocket.disconnect":
            await self.reads.wait()
            self.received.append(message := await receive())
            if message["type"] == "websocket.receive":
                if message["text"] == "fail":
                    raise RuntimeError("a mistake")
                self.taken.append(message["text"])


async def test_of_many_messages_that_come_at_once_few_are_passed_on_in_one_pass():
    app = Receiving()
    async with served_in_memory(app) as server:
        clients = [await SocketClient.opened(server) for _ in range(4 * AT_ONCE)]
        for client in clients:
            client.say_data(framed(b"x"))
        most = 0
        while (before := len(app.taken)) < len(clients):
            await anyio.lowlevel.checkpoint()
            # Trio shuffles the tasks of a pass, so there may be two of the worker's in one here.
            most = max(most, (len(app.taken) - before + 1) // 2)
        assert most <= AT_ONCE
        for client in clients:
            client.wire.receiver.client_ended()


async def test_a_client_that_is_gone_is_not_waited_for():
    app = Receiving()
    async with served_in_memory(app) as server:
        client = await SocketClient.opened(server)
        client.say_data(framed(b"last"))
        client.wire.close()
        client.wire.receiver.connection_lost()
        await settle()
        assert app.taken == []
        assert client.releases == 1


async def test_a_mistake_of_the_application_ends_that_connection_alone(caplog):
    app = Receiving()
    async with served_in_memory(app) as server:
        clients = [await SocketClient.opened(server) for _ in range(2)]
        clients[0].say_data(framed(b"fail"))
        clients[1].say_data(framed(b"x"))
        await settle()
        assert [client.wire.is_open for client in clients] == [False, True]
        assert clients[0].releases == 1
        assert app.taken == ["x"]
        clients[1].wire.receiver.client_ended()
    assert len(caplog.records) == 1
    assert "the application failed" in caplog.text
    caplog.clear()


async def test_answers_wait_for_a_client_that_does_not_read_and_keep_their_order():
    async def counted(items: list[int]):
        for step in range(max(items)):
            yield [step if step < item else shoal.END for item in items]

    app = app_of(counted, slow_reader_timeout_s=None)
    async with opened(app) as client:
        client.wire.takes = False
        client.say(id=1, item=40)
        await settle()
        assert client.wire.unsent.count(b'"next"') < 40
        while client.wire.unsent:
            client.read_on()
            client.wire.takes = False
            await settle()
        messages = client.messages()
        assert [each.get("next") for each in messages] == [*range(40), None]
        assert messages[-1] == {"id": 1, "end": True}
        client.wire.takes = True


async def test_a_client_is_read_again_once_its_answers_are_sent(monkeypatch):
    monkeypatch.setattr(connection, "_MOST_UNSENT", 2)
    app = app_of(double)
    async with opened(app) as client:
        client.say_data(b"".join(framed(b'{"id":%d,"item":"no"}' % number) for number in range(9)))
        await settle()
        assert sorted(each["id"] for each in client.messages()) == list(range(9))


async def test_a_client_is_not_read_while_large_answers_wait_for_it():
    called = []

    async def large(items: list[int]) -> list[str]:
        called.extend(items)
        return ["x" * 2**18 for _ in items]

    app = app_of(large)
    async with opened(app) as client:
        client.wire.takes = False
        for number in range(30):
            client.say(id=number, item=number)
            await settle()
        assert len(called) < 10
        answered = []
        while len(answered) < 30:
            client.read_on()
            await settle()
            answered += [each["id"] for each in client.messages()]
        assert sorted(answered) == called == list(range(30))


async def test_the_last_answer_of_a_server_that_ends_is_followed_by_the_close():
    go = anyio.Event()

    async def held(items: list[int]) -> list[int]:
        await go.wait()
        return items

    app = app_of(held)
    async with opened(app) as client:
        client.say(id=1, item=1)
        await settle()
        for connection in client.server.shared.connections:
            connection.drain()
        await settle()
        assert client.events() == []
        go.set()
        await settle()
        answer, close = client.events()
        assert json.loads(answer.data) == {"id": 1, "result": 1}
        assert close.code == 1012


async def test_a_message_between_the_frames_of_another_one_is_refused():
    app = Receiving()
    async with served_in_memory(app) as server:
        client = await SocketClient.opened(server)
        client.say_data(framed(b"a", fin=False))
        await settle()
        client.say_data(framed(b"b"))
        await settle()
        assert (app.taken, client.wire.is_open) == ([], False)


async def test_a_client_that_does_not_read_is_ended_and_its_requests_are_cancelled():
    cancelled = []

    async def held(items: list[int]) -> list[int]:
        if items == [1]:
            return items
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.extend(items)

    app = app_of(held, max_batch_size=1, max_concurrent_batches=2)
    async with opened(app, send_timeout_s=10) as client:
        client.wire.takes = False
        client.say(id=1, item=1)
        client.say(id=2, item=2)
        await anyio.sleep(9)
        assert (client.wire.is_open, cancelled) == (True, [])
        await anyio.sleep(2)
        await settle()
        assert (client.wire.is_open, client.releases, cancelled) == (False, 1, [2])


async def test_a_message_that_is_not_read_yet_is_a_sign_of_life():
    app = app_of(double)
    async with opened(app, ping_interval_s=5) as client:
        await anyio.sleep(6)
        assert any(isinstance(each, Ping) for each in client.events())
        client.wire.unread = framed(b'{"id":1,"item":1}')
        await anyio.sleep(5)
        assert client.wire.is_open
        assert client.messages() == [{"id": 1, "result": 2}]
        await anyio.sleep(11)
        assert not client.wire.is_open


class Canceller(BaseModel):
    @model_validator(mode="after")
    def _cancel(self):
        import asyncio

        asyncio.current_task().cancel()
        return self


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_code_that_cancels_its_task_fails_its_own_request_alone():
    async def made(items: list[int | Canceller]) -> list[int]:
        return [1 for _ in items]

    app = app_of(made)
    async with app.lifespan(), served_in_memory(app) as server:
        other, client = [await SocketClient.opened(server) for _ in range(2)]
        client.say_data(framed(b"", opcode=9) + framed(b'{"id":1,"item":{}}'))
        await settle()
        [failed] = client.messages()
        assert (failed["id"], failed["error"]["status"]) == (1, 500)
        for socket in (other, client):
            socket.say(id=2, item=1)
            await settle()
            assert socket.messages() == [{"id": 2, "result": 1}]


class Enterer(BaseModel):
    @model_validator(mode="after")
    def _enter(self):
        anyio.CancelScope().__enter__()
        return self


async def test_code_that_leaves_a_scope_open_in_the_task_that_reads_ends_no_other_connection():
    async def made(items: list[int | Enterer]) -> list[int]:
        return [1 for _ in items]

    app = app_of(made)
    async with app.lifespan(), served_in_memory(app) as server:
        other, client = [await SocketClient.opened(server) for _ in range(2)]
        client.say_data(framed(b"", opcode=9) + framed(b'{"id":1,"item":{}}'))
        await settle()
        client.wire.receiver.client_ended()
        await settle()
        assert (client.wire.is_open, client.releases) == (False, 1)
        other.say(id=1, item=1)
        await settle()
        assert other.messages() == [{"id": 1, "result": 1}]


# Clients that send more than can be answered at once: others have their turn.

FLOOD = 1000
MOST_IN_A_TURN = 100  # trio may run one task twice between two runs of another


async def most_in_a_pass(count):
    """The most by which a count grows while the other tasks run once, until it has FLOOD."""
    most = before = 0
    while before < FLOOD:
        await anyio.lowlevel.checkpoint()
        now = count()
        most, before = max(most, now - before), now
    return most


async def test_pings_are_answered_in_turns():
    app = app_of(double)
    async with opened(app) as client:
        client.events()
        client.say_data(framed(b"", opcode=9) * FLOOD)
        pong = 2  # bytes
        assert await most_in_a_pass(lambda: len(client.wire.sent) // pong) <= MOST_IN_A_TURN


async def test_small_messages_are_taken_in_turns(monkeypatch):
    taken = []
    handle = connection.SocketConnection._handle

    def noted(self, text, data):
        taken.append(text)
        handle(self, text, data)

    monkeypatch.setattr(connection.SocketConnection, "_handle", noted)
    app = app_of(double)
    async with opened(app) as client:
        client.say_data(framed(b'{"id": 1, "cancel": true}') * FLOOD)
        assert await most_in_a_pass(lambda: len(taken)) <= MOST_IN_A_TURN
