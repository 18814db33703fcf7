"""What rude clients do, each on a real socket; most of these ended Hypercorn's own trio server."""

import asyncio
import logging

import anyio
import h2.errors
import h2.events
import h2.settings
import pytest
from echo_app import EchoApp
from live_server import LiveServer, http2, live, read_all, read_until, request, until_quiet, upgrade
from starlette.requests import Request
from starlette.responses import StreamingResponse

from shoal.asgi.http_options import HttpOptions
from shoal.server.timeouts import time_to_send_s
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


def errors(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


# H1: an error in one connection ends that connection, is logged once, and nothing else.


async def test_white_space_that_only_latin_1_knows_is_refused_in_an_upgrade(caplog):
    sent = request("/", headers=["Connection: \x85Upgrade", "Upgrade: websocket"])
    async with live(EchoApp()) as server:
        assert (await server.talk(sent)).startswith(b"HTTP/1.1 400 ")
        assert await server.answers()
    assert errors(caplog) == []


async def test_a_byte_after_the_upgrade_is_refused_before_the_application_can_accept(caplog, echo):
    async with live(echo) as server:
        assert (await server.talk(upgrade() + b"x")).startswith(b"HTTP/1.1 400")
        await echo.left.wait()
        assert await server.answers()
    assert errors(caplog) == []


async def test_a_flood_of_priorities_changes_nothing(caplog):
    async with live(EchoApp()) as server, http2(server) as client:
        for number in range(1500):
            client.connection.prioritize(2 * number + 1, weight=5)
        asked = client.ask()
        await client.flush()
        answer = await client.wait_for(h2.events.ResponseReceived, asked)
        assert dict(answer.headers)[b":status"] == b"200"
    assert errors(caplog) == []


UPLOAD = request("/fail", method="POST", headers=["Transfer-Encoding: chunked"])


@pytest.mark.parametrize("sent", [request("/fail"), UPLOAD + b"1\r\na\r\n" * 50])
async def test_an_error_of_the_application_is_answered_and_logged_once(sent, caplog):
    async with live(EchoApp()) as server:
        assert (await server.talk(sent)).startswith(b"HTTP/1.1 500")
        assert await server.answers()
    (error,) = errors(caplog)
    assert error.getMessage() == "the application failed on b'/fail'"


@pytest.mark.parametrize("anyio_backend", ["trio"])  # asyncio lets it out of the loop itself
async def test_a_keyboard_interrupt_passes():
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        async with live(EchoApp()) as server:
            await server.talk(request("/interrupt"))


# H1 on HTTP/2: what is legal there must not cost the connection's other streams anything.


async def test_a_body_that_goes_on_after_its_early_answer_is_stopped_and_the_rest_goes_on(caplog):
    async with live(EchoApp()) as server, http2(server) as client:
        refused = client.ask(b"/early", method=b"POST", end=False)
        await client.flush()
        await client.wait_for(h2.events.StreamEnded, refused)
        await anyio.wait_all_tasks_blocked()
        client.connection.send_data(refused, bytes(1000))
        await client.flush()
        reset = await client.wait_for(h2.events.StreamReset, refused)
        assert reset.error_code == 0
        await client.fetch(b"/")
    assert errors(caplog) == []


async def test_a_client_that_resets_most_of_its_requests_is_told_to_calm_down(caplog, echo):
    async with live(echo) as server, http2(server) as client:
        for _ in range(101):
            client.connection.reset_stream(client.ask(b"/disconnect"))
        await client.flush()
        end = await client.wait_for(h2.events.ConnectionTerminated)
        assert end.error_code is h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        await anyio.wait_all_tasks_blocked()
        assert echo.running == 0
        assert await server.answers()
    (error,) = errors(caplog)
    assert error.getMessage().startswith("an error ended the connection from")


async def test_a_client_that_resets_some_of_its_requests_keeps_its_connection(caplog):
    async with live(EchoApp()) as server, http2(server) as client:
        for _ in range(150):
            for _ in range(2):
                await client.fetch(b"/")
            client.connection.reset_stream(client.ask(b"/disconnect"))
            await client.flush()
        await client.fetch(b"/")
    assert errors(caplog) == []


# H2: a streamed answer must give its connection back.


async def test_starlettes_streamed_answers_leak_no_connection():
    async def app(scope, receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await StreamingResponse(iter(["a", "b"]))(scope, receive, send)

    async with live(app, max_connections=1) as server:
        for _ in range(50):
            assert (await server.talk(request("/") + request("/", close=True))).count(
                b"b\r\n0"
            ) == 2


async def test_starlettes_is_disconnected_tells_the_truth():
    seen = []
    left = anyio.Event()

    async def app(scope, receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        asked = Request(scope, receive)
        await asked.body()
        seen.append(await asked.is_disconnected())
        await client.aclose()
        await until_quiet()
        seen.append(await asked.is_disconnected())
        left.set()

    async with live(app) as server:
        client = await server.connect()
        await client.send_all(request("/"))
        await left.wait()
    assert seen == [False, True]


# H3: a client that stops reading is given a deadline, and then nothing.


@pytest.mark.parametrize("requests", [1, 2])
async def test_a_client_that_does_not_read_is_closed_by_force(requests, each_poller, caplog, echo):
    async with live(echo, send_timeout_s=0.05, max_connections=1) as server:
        async with await server.connect() as client:
            await client.send_all(request("/flood") * requests)
            await echo.left.wait()
            assert (await read_all(client)).endswith(b"<reset>")
        assert await server.answers()
    assert [error for error in errors(caplog) if "the connection limit" not in error.message] == []


async def test_a_client_that_does_not_read_does_not_hold_up_the_shutdown(each_poller, echo):
    patient = live(echo, send_timeout_s=HANG_S * 2, graceful_timeout_s=0.05)
    async with patient as server, await server.connect() as client:
        await client.send_all(request("/flood"))
        await echo.entered.wait()
        await until_quiet()
        server.stop.set()
        await echo.left.wait()
    assert server.drained.cut == 1


async def test_a_send_that_its_application_gives_up_is_sent_whole():
    gave_up = anyio.Event()
    body = bytes(2**23)

    async def app(scope, receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up, tasks.cancel_scope)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"and more"})

    async def give_up(scope):
        await until_quiet()
        scope.cancel()
        gave_up.set()

    async with live(app) as server, await server.connect() as client:
        await client.send_all(request("/", close=True))
        await gave_up.wait()
        answer = await read_all(client)
    assert answer.endswith(body + b"\r\n8\r\nand more\r\n0\r\n\r\n")


async def test_an_endless_stream_to_nobody_can_be_ended(echo):
    async with live(echo, graceful_timeout_s=0.05) as server:
        client = await server.connect()
        await client.send_all(request("/unread"))
        await echo.entered.wait()
        await client.aclose()
        for _ in range(100):  # turns: the application never blocks
            await anyio.lowlevel.checkpoint()
        assert echo.running == 1
        server.stop.set()
    assert server.drained.cut == 1


async def test_a_client_may_take_the_deadline_once_for_each_256_kib():
    assert time_to_send_s(1, 10.0) == 10.0
    assert time_to_send_s(2**20, 10.0) == 50.0


# A queue that nobody reads must not block the disconnect (found beside H3 and H4).


async def test_the_disconnect_is_repeated_at_each_receive(each_poller, echo):
    async with live(echo) as server:
        client = await server.connect()
        await client.send_all(request("/disconnect"))
        await echo.entered.wait()
        await client.aclose()
        await echo.left.wait()
    assert echo.disconnects == ["http.disconnect"] * 3


# H6: flow control holds a stream without holding the socket.


async def test_a_stream_whose_window_stays_closed_is_reset_and_the_rest_goes_on(echo):
    async with live(echo, send_timeout_s=0.05) as server, http2(server) as client:
        client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stalled = client.ask(b"/flood")
        await client.flush()
        reset = await client.wait_for(h2.events.StreamReset, stalled)
        assert reset.error_code == 8  # CANCEL
        await echo.left.wait()
        client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**16})
        await client.fetch(b"/")


async def test_an_upgrade_to_http2_is_left_alone():
    offer = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"]
    async with live(EchoApp()) as server, await server.connect() as client:
        await client.send_all(request("/", headers=offer))
        assert (await read_until(client, b"hello")).startswith(b"HTTP/1.1 200")


async def test_clients_that_came_together_are_accepted_together():
    """One in each pass of the event loop would be few where handlers hold the loop."""
    called = []

    async def counts(scope, receive, send):
        called.append(scope["type"])
        await EchoApp()(scope, receive, send)

    async with live(counts) as server:
        clients = [server.connect_now(request("/")) for _ in range(30)]
        for _ in range(15):
            await anyio.lowlevel.checkpoint()
        assert called.count("http") == 30
        for client in clients:
            client.close()


def test_a_request_is_served_beside_an_earlier_call_in_a_loop_that_anyio_did_not_start():
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        await asyncio.sleep(60)  # it goes on after its answer

    async def ask_twice():
        server = LiveServer()
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run, app, HttpOptions(port=0))
            async with await server.connect() as client:
                for _ in range(2):
                    await client.send_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    with anyio.fail_after(HANG_S):
                        assert (await client.receive_some()).startswith(b"HTTP/1.1 200 ")
            tasks.cancel_scope.cancel()

    asyncio.run(ask_twice())  # anyio would mark the context of all callbacks
