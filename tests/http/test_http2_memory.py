"""What an HTTP/2 connection holds, where its client takes nothing."""

from __future__ import annotations

import gc
import sys

import anyio
import anyio.lowlevel
import h2.events
import h2.settings
import pytest
from echo_app import EchoApp
from live_server import HANG_S, Http2Client, live, until_quiet

from shoal.http.server.hypercorn import Context
from shoal.http.server.sockets.transport import Transport
from shoal.http.server.streams.http2 import Http2, _BoundedBuffer
from shoal.http.server.turns import Turns

pytestmark = [pytest.mark.anyio]

FRAME = 2**14
WINDOW = 2**30


@pytest.fixture
def all_of():
    """All objects of a kind that were made since the test began."""

    def found(kind):
        return [each for each in gc.get_objects() if type(each) is kind]

    gc.collect()
    before = {id(each) for kind in (Transport, Http2) for each in found(kind)}
    return lambda kind: [each for each in found(kind) if id(each) not in before]


async def flood(scope, _receive, send):
    """Sends 4 MiB."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(128):
            piece = bytes([number]) * 2**15
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def asking_much(server):
    """A client whose windows are as good as open."""
    client = Http2Client(await server.connect())
    client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW})
    client.connection.increment_flow_control_window(WINDOW)
    asked = client.ask()
    await client.flush()
    return client, asked


@pytest.mark.real_time
async def test_no_frame_is_made_for_a_client_that_does_not_read(all_of, monkeypatch):
    turns = []
    take = Turns.take
    monkeypatch.setattr(Turns, "take", lambda self, turn: turns.append(turn) or take(self, turn))
    async with live(flood) as server:
        client, asked = await asking_much(server)
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
        assert bytes(received) == b"".join(bytes([number]) * 2**15 for number in range(128))
        assert len(turns) >= len(received) // (4 * FRAME)
        await client.stream.aclose()


async def send_64_mib(scope, _receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**26)})


@pytest.mark.real_time
async def test_a_client_that_never_reads_loses_its_place_before_the_time_of_the_whole_answer(
    all_of,
):
    patient = {"keep_alive_timeout_s": HANG_S * 2, "ping_interval_s": HANG_S * 2}
    async with live(send_64_mib, send_timeout_s=HANG_S / 100, **patient) as server:
        client, _ = await asking_much(server)
        with anyio.fail_after(HANG_S / 2):
            while not all_of(Transport):
                await anyio.lowlevel.checkpoint()
            while all_of(Transport):
                await until_quiet()
        await client.stream.aclose()


@pytest.mark.real_time
async def test_the_settings_of_a_connection_are_small_and_still_change(all_of):
    async with live(EchoApp()) as server:
        client = Http2Client(await server.connect())
        codes = h2.settings.SettingCodes
        client.connection.update_settings(
            {codes.HEADER_TABLE_SIZE: 100, codes.MAX_FRAME_SIZE: 2**15}
        )
        client.connection.update_settings({codes.HEADER_TABLE_SIZE: 200})
        asked = client.ask()
        await client.flush()
        await client.wait_for(h2.events.StreamEnded, asked)
        (protocol,) = all_of(Http2)
        settings = protocol.connection.remote_settings
        assert (settings.header_table_size, settings.max_frame_size) == (200, 2**15)
        assert protocol.connection.local_settings.enable_connect_protocol == 1
        values = [
            each
            for side in (settings, protocol.connection.local_settings)
            for code, each in side._settings.items()
            if code in codes.__members__.values()
        ]
        assert sum(map(sys.getsizeof, values)) < 250 * len(values)
        await client.stream.aclose()


async def test_large_pieces_are_not_copied_and_small_ones_are_joined():
    buffer = _BoundedBuffer()
    large = bytes(range(256)) * 64 + b"more"
    await buffer.push(b"a")
    await buffer.push(b"b" * 10)
    await buffer.push(large)
    await buffer.push(b"c")
    assert buffer.size == 11 + len(large) + 1
    assert await buffer.pop(5) == b"abbbb"
    assert await buffer.pop(FRAME) == b"bbbbbb"
    first = await buffer.pop(FRAME)
    assert first.obj is large
    assert first == large[:FRAME]
    assert await buffer.pop(FRAME) == b"more"
    assert not buffer.complete
    buffer.set_complete()
    assert await buffer.pop(FRAME) == b"c"
    assert buffer.size == 0
    assert buffer.complete


@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
async def test_a_piece_that_the_application_may_change_is_copied(kind):
    buffer = _BoundedBuffer()
    piece = kind(b"a" * FRAME)
    await buffer.push(piece)
    piece[0] = ord("b")
    if isinstance(piece, bytearray):
        piece.clear()  # fails while there is a view
    assert await buffer.pop(FRAME) == b"a" * FRAME


async def test_what_adds_much_waits_until_most_is_sent():
    buffer = _BoundedBuffer()
    added = []

    async def add():
        await buffer.push(bytes(4 * FRAME))
        added.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            await buffer.pop(FRAME)
        await anyio.wait_all_tasks_blocked()
        assert not added  # a frame is left, as much as is sent at once
        await buffer.pop(1)
        await anyio.wait_all_tasks_blocked()
        assert added


async def test_an_event_may_be_awaited_before_and_after_it_is_set():
    event = Context.event_class()
    woken = []

    async def wait():
        await event.wait()
        woken.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await event.clear()
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not woken
        await event.set()
        assert event.is_set()
        await anyio.wait_all_tasks_blocked()
        assert woken == [True, True]
        await wait()
        await event.clear()
        assert not event.is_set()
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert len(woken) == 3
        event.set_now()


@pytest.mark.real_time
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
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"answer"})

        async with live(app) as server:
            client = Http2Client(await server.connect())
            asked = client.ask()
            await client.flush()
            await client.wait_for(h2.events.StreamEnded, asked)
            await until_quiet()
            ended.set()
            with anyio.fail_after(HANG_S / 4):
                await sent.wait()
            again = client.ask()
            await client.flush()
            await client.wait_for(h2.events.StreamEnded, again)
            await client.stream.aclose()
