"""What clients hold of the server: places, bodies and memory; and what is given back, and when."""

import socket

import anyio
import h2.events
import h2.settings
import pytest
from echo_app import EchoApp
from live_server import http2, live, read_all, read_until, request, until_quiet, upgrade

from shoal.server.shared import Shared
from shoal.server.transport import Transport
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Nothing but the end of the work may end a drain.
PATIENT = {"keep_alive_timeout_s": HANG_S * 2, "graceful_timeout_s": HANG_S * 2}


@pytest.fixture(autouse=True)
def brief_drains(monkeypatch):
    monkeypatch.setattr(Shared, "late_request_s", 0.05)


@pytest.mark.parametrize("sent", [b"", b"G", PREFACE[:10], PREFACE, request("/")[:-2]])
async def test_shutdown_does_not_wait_for_a_client_without_a_request(sent):
    patient = live(EchoApp(), head_timeout_s=HANG_S * 2, **PATIENT)
    async with patient as server, await server.connect() as client:
        await client.send_all(sent)
        await until_quiet()
        server.stop.set()
        with anyio.fail_after(HANG_S / 4):
            await read_all(client)
    assert server.drained.cut == 0


@pytest.mark.parametrize("state", ["answered", "cancelled", "cancelled with half a body"])
async def test_shutdown_does_not_wait_for_an_http2_client_whose_requests_have_ended(state, echo):
    async with live(echo, body_timeout_s=HANG_S * 2, **PATIENT) as server, http2(server) as client:
        if state == "cancelled with half a body":
            asked = client.ask(b"/disconnect", method=b"POST", end=False)
            client.connection.send_data(asked, b"half")
        else:
            asked = client.ask(b"/" if state == "answered" else b"/disconnect")
        await client.flush()
        await echo.entered.wait()
        if state == "answered":
            await client.wait_for(h2.events.StreamEnded, asked)
        else:
            client.connection.reset_stream(asked, 8)  # CANCEL
            await client.flush()
        await echo.left.wait()
        server.stop.set()
        with anyio.fail_after(HANG_S / 4):
            await read_all(client.stream)
    assert server.drained.cut == 0


# A client that does not read leaves its answer to the application, and not to the kernel.


async def test_the_kernel_takes_little_of_what_a_client_does_not_read():
    taken = 0

    async def app(scope, receive, send):
        nonlocal taken
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                body = bytes(2**16)
                await send({"type": "http.response.body", "body": body, "more_body": True})
                taken += len(body)

    async with live(app, graceful_timeout_s=0.0) as server, await server.connect() as client:
        await client.send_all(request("/"))
        while not taken:
            await anyio.lowlevel.checkpoint()
        await until_quiet()
        assert taken < 2**20


# A client that has used up its time on HTTP/2 has none left to be idle.


async def test_a_connection_whose_client_takes_no_data_ends_with_its_time():
    async with (
        live(EchoApp(), send_timeout_s=0.1, keep_alive_timeout_s=HANG_S * 2) as server,
        http2(server) as client,
    ):
        client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        asked = client.ask()
        await client.flush()
        with anyio.fail_after(HANG_S / 4):
            await client.wait_for(h2.events.StreamReset, asked)
            await read_all(client.stream)


async def test_other_requests_of_a_connection_whose_body_does_not_come_are_answered(echo):
    async with (
        live(echo, body_timeout_s=0.1, keep_alive_timeout_s=HANG_S * 2) as server,
        http2(server) as client,
    ):
        held = client.ask(b"/hold")
        late = client.ask(method=b"POST", end=False)
        await client.flush()
        await client.wait_for(h2.events.StreamEnded, late)
        echo.release.set()
        await client.wait_for(h2.events.StreamEnded, held)
        with anyio.fail_after(HANG_S / 4):
            await read_all(client.stream)


# A busy event loop does not drop what has arrived: before it gives up a connection, it reads.


@pytest.fixture
def busy(monkeypatch):
    """Makes servers so busy that deadlines pass before they are told what has arrived."""

    ready = Transport.ready

    def make_busy():
        # What it reads of its own accord, without a report of the poller, it is told all the same.
        monkeypatch.setattr(Transport, "ready", lambda at, events: events or ready(at, 0))

    return make_busy


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_request_that_came_in_time_is_answered_however_late_it_is_read(is_kept, busy):
    async with (
        live(EchoApp(), keep_alive_timeout_s=0.2) as server,
        await server.connect() as client,
    ):
        if is_kept:
            await client.send_all(request("/"))
            await read_until(client, b"hello")
        else:
            await until_quiet()
        busy()
        await client.send_all(request("/", close=True))
        assert (await read_all(client)).endswith(b"hello")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_stream_that_came_in_time_is_answered_however_late_it_is_read(is_kept, busy):
    async with live(EchoApp(), keep_alive_timeout_s=0.2) as server, http2(server) as client:
        if is_kept:
            await client.fetch(b"/")
        else:
            await client.flush()
            await until_quiet()
        busy()
        await client.fetch(b"/")


async def test_requests_behind_one_that_is_answered_wait_in_the_kernel(echo):
    async def send_all():
        await client.send_all(request("/hold") + request("/") * 200_000)
        is_sent.set()

    is_sent = anyio.Event()
    async with (
        live(echo, graceful_timeout_s=0.05) as server,
        await server.connect() as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(send_all)
        await echo.entered.wait()
        await until_quiet()
        assert not is_sent.is_set()
        tasks.cancel_scope.cancel()


async def test_a_call_ends_when_its_answer_is_sent_though_the_next_one_waits_for_the_client(echo):
    body = bytes(2**23)
    count = 12

    async def large(scope, receive, send):
        await echo.answer(send, 200, body)

    echo.hold = large
    async with live(echo, graceful_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(request("/hold") * count)
        left = count * len(body)
        while left > 0:
            left -= len(await client.receive_some())
        await until_quiet()
        running = echo.running
    assert running == 0


async def test_answers_do_not_wait_for_acknowledgements(monkeypatch):
    """Otherwise the second packet of an answer waits some 40 ms for a delayed one."""
    transports = []
    start = Transport.start

    def note_start(transport):
        transports.append(transport)
        start(transport)

    monkeypatch.setattr(Transport, "start", note_start)
    async with live(EchoApp()) as server:
        for opening in (request("/"), PREFACE, upgrade()):
            async with await server.connect() as client:
                await client.send_all(opening)
                await client.receive_some()
                connected = transports[-1]._socket
                assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
