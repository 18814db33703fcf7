"""What an HTTP/2 connection holds, where its client takes nothing."""

import gc
from contextlib import asynccontextmanager

import anyio
import h2.events
import h2.settings
import pytest
from echo_app import EchoApp
from h2.utilities import SizeLimitDict
from live_server import http2, live, read_until, until_quiet

from shoal.server.shared import Turns
from shoal.server.streams import http2 as http2_module
from shoal.server.transport import Transport
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

FRAME = 2**14
WINDOW = 2**30
START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "more_body": True}


@pytest.fixture
def all_of():
    """All objects of a kind that were made since the test began."""

    def found(kind):
        return [each for each in gc.get_objects() if type(each) is kind]

    gc.collect()
    before = {id(each) for each in found(Transport)}
    return lambda kind: [each for each in found(kind) if id(each) not in before]


@asynccontextmanager
async def asking(server, window, whole=0):
    """A client with a window for each response, and one for the whole connection."""
    async with http2(server) as client:
        client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        if whole:
            client.connection.increment_flow_control_window(whole)
        asked = client.ask()
        await client.flush()
        yield client, asked


async def test_no_frame_is_made_for_a_client_that_does_not_read(all_of, monkeypatch):
    turns = []
    take = Turns.take

    def noted(self, turn, *cost):
        turns.append(turn)
        take(self, turn, *cost)

    monkeypatch.setattr(Turns, "take", noted)
    parts = [bytes([number]) * 2**15 for number in range(128)]
    async with live(Parts(parts)) as server, asking(server, WINDOW, WINDOW) as (client, asked):
        while not any(each.is_blocked for each in all_of(Transport)):
            await anyio.lowlevel.checkpoint()
        await until_quiet()
        (transport,) = all_of(Transport)
        assert transport.is_blocked
        assert not transport.unsent

        received = bytearray()
        ended = False
        while not ended:
            for event in client.connection.receive_data(await client.stream.receive_some()):
                if isinstance(event, h2.events.DataReceived):
                    received += event.data
                    client.connection.acknowledge_received_data(event.flow_controlled_length, asked)
                ended |= isinstance(event, h2.events.StreamEnded)
            await client.flush()
        assert bytes(received) == b"".join(parts)
        assert len(turns) >= len(received) // (4 * FRAME)


async def send_64_mib(scope, _receive, send):
    if scope["type"] == "http":
        await send(START)
        await send({"type": "http.response.body", "body": bytes(2**26)})


async def test_a_client_that_never_reads_loses_its_place_before_the_whole_answer_s_time(all_of):
    patient = {"keep_alive_timeout_s": HANG_S * 2, "ping_interval_s": HANG_S * 2}
    async with (
        live(send_64_mib, send_timeout_s=0.2, **patient) as server,
        asking(server, WINDOW, WINDOW),
    ):
        with anyio.fail_after(HANG_S / 2):
            while not all_of(Transport):
                await anyio.lowlevel.checkpoint()
            while all_of(Transport):
                await until_quiet()


@pytest.mark.one_loop
async def test_a_connection_keeps_nothing_for_each_request_that_is_over(all_of):
    head = b"\x82\x84\x86\x41\x01x"  # GET / http x
    last = 1

    async with live(EchoApp()) as server, http2(server) as client:
        await client.fetch()

        async def ask_often(times):
            # Not by h2, since a client of it keeps a record of its streams.
            nonlocal last
            for _ in range(times // 50):
                streams = range(last + 2, last + 102, 2)
                frames = [b"\0\0\6\1\5" + stream.to_bytes(4) + head for stream in streams]
                last = streams[-1]
                await client.stream.send_all(b"".join(frames))
                await read_until(client.stream, b"\0\1" + last.to_bytes(4))
                await until_quiet()  # for those that are answered after the last one
            gc.collect()
            ours = ("shoal", "h2", "hpack")
            return sum(type(each).__module__.startswith(ours) for each in gc.get_objects())

        before = await ask_often(50)
        assert await ask_often(250) <= before
        # What h2 knows of streams that are closed is no object of the garbage collector.
        assert max(map(len, all_of(SizeLimitDict))) <= 200


class Parts:
    """Sends parts of a body, and notes how many were taken."""

    def __init__(self, parts, *, changes=False):
        self.parts = parts
        self.changes = changes
        self.taken = 0

    async def __call__(self, scope, _receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await send(START)
        for part in self.parts:
            try:
                await send({**PART, "body": part})
            finally:
                self.taken += 1
            if self.changes:
                part[:] = b"b" * len(part)
        await send({"type": "http.response.body", "body": b""})


async def body_of(client, asked):
    """The body of a response, whose windows are opened only now."""
    client.connection.increment_flow_control_window(2**24, asked)
    client.connection.increment_flow_control_window(2**24)
    await client.flush()
    received = b""
    while True:
        for event in client.connection.receive_data(await client.stream.receive_some()):
            if isinstance(event, h2.events.DataReceived):
                received += event.data
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                assert isinstance(event, h2.events.StreamEnded)
                return received


async def test_what_a_client_has_no_window_for_is_not_collected():
    app = Parts([bytes(FRAME)] * 100)
    async with live(app) as server, asking(server, 10) as (client, asked):
        await until_quiet()
        assert app.taken == 0
        assert await body_of(client, asked) == bytes(100 * FRAME)


async def test_a_part_that_the_application_changes_later_was_copied():
    app = Parts([bytearray(b"a" * 2 * FRAME) for _ in range(3)], changes=True)
    async with live(app) as server, asking(server, 10) as (client, asked):
        assert await body_of(client, asked) == b"a" * 6 * FRAME


async def test_a_send_that_is_cancelled_is_sent_whole():
    is_cancelled = anyio.Event()

    async def app(scope, _receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await send(START)
        for part in (b"a" * FRAME, b"b" * FRAME):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(send, {**PART, "body": part})
                    await until_quiet()
                    scope.cancel()
        is_cancelled.set()
        await send({"type": "http.response.body", "body": b"c"})

    async with live(app) as server, asking(server, 10) as (client, asked):
        await is_cancelled.wait()
        # The second one had not begun, since the first was not sent yet.
        assert await body_of(client, asked) == b"a" * FRAME + b"c"


async def test_bodies_that_are_not_received_take_no_window_from_others(echo):
    async with live(echo) as server, http2(server) as client:
        await client.flush()
        await client.wait_for(h2.events.RemoteSettingsChanged)
        held = [client.ask(b"/hold", method=b"POST", end=False) for _ in range(50)]
        other = client.ask(b"/", method=b"POST", end=False)
        for stream_id in held:
            for size in (FRAME, FRAME, FRAME, FRAME - 1):
                client.connection.send_data(stream_id, bytes(size))
        assert client.connection.local_flow_control_window(held[0]) == 0
        client.connection.send_data(other, b"sent", end_stream=True)
        await client.flush()
        assert (await client.wait_for(h2.events.DataReceived, other)).data == b"sent"
        echo.release.set()
        await client.wait_for(h2.events.StreamEnded, held[-1])


async def test_a_response_ends_although_its_window_has_become_negative():
    go = anyio.Event()

    async def app(scope, _receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await send(START)
        await send({**PART, "body": b"a part"})
        await go.wait()
        await send({**PART, "body": b""})
        await send({"type": "http.response.body", "body": b""})

    async with live(app) as server, asking(server, 10) as (client, asked):
        await client.wait_for(h2.events.DataReceived, asked)
        client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        await client.flush()
        await client.wait_for(h2.events.SettingsAcknowledged)
        go.set()
        # An empty frame, which h2 would not send, nor take as a client.
        await read_until(client.stream, b"\0\0\0\0\1" + asked.to_bytes(4))


async def test_the_settings_of_a_client_may_change():
    codes = h2.settings.SettingCodes
    async with live(EchoApp()) as server, http2(server) as client:
        for values in (
            {codes.HEADER_TABLE_SIZE: 100, codes.MAX_FRAME_SIZE: 2**15},
            {codes.HEADER_TABLE_SIZE: 200},
            {codes.INITIAL_WINDOW_SIZE: 0},
        ):
            client.connection.update_settings(values)
        asked = client.ask()
        await client.flush()
        await client.wait_for(h2.events.ResponseReceived, asked)
        client.connection.update_settings({codes.INITIAL_WINDOW_SIZE: 100})
        await client.flush()
        await client.wait_for(h2.events.StreamEnded, asked)
        assert client.connection.remote_settings.enable_connect_protocol == 1


async def test_what_a_task_sends_after_the_end_of_its_call_is_dropped():
    sent = anyio.Event()
    ended = anyio.Event()

    async with anyio.create_task_group() as left_behind:

        async def late(send):
            await ended.wait()
            for body in (b"late", b""):
                await send({"type": "http.response.body", "body": body, "more_body": bool(body)})
            sent.set()

        async def app(scope, _receive, send):
            if scope["type"] == "http":
                left_behind.start_soon(late, send)
                await EchoApp().answer(send, 200, b"answer")

        async with live(app) as server, http2(server) as client:
            await client.fetch()
            await until_quiet()
            ended.set()
            with anyio.fail_after(HANG_S / 4):
                await sent.wait()
            await client.fetch()


async def test_bodies_that_the_application_does_not_read_give_their_windows_back(monkeypatch):
    monkeypatch.setattr(http2_module, "_WINDOW", 2**17)
    has_all = anyio.Event()

    async def app(scope, _receive, send):
        if scope["type"] == "http":
            await has_all.wait()
            await send(START)
            await send({"type": "http.response.body", "body": b""})

    async with live(app) as server, http2(server) as client:
        for _ in range(5):  # together larger than the window of the connection
            asked = client.ask(method=b"POST", end=False)
            for _ in range(2):
                client.connection.send_data(asked, bytes(FRAME))
            client.connection.end_stream(asked)
            await client.flush()
            await until_quiet()
            has_all.set()
            await client.wait_for(h2.events.StreamEnded, asked)
            has_all = anyio.Event()
