"""The server's own promises: it serves, drains in order, and ends."""

import errno
import time

import anyio
import h2.events
import pytest
from echo_app import EchoApp
from live_server import http2, live, read_all, read_until, request, until_quiet, upgrade
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import CloseConnection, TextMessage

from shoal.asgi.http_options import HttpOptions
from shoal.errors import LifespanFailed
from shoal.server.http1.connection import Http1Connection
from shoal.server.server import serve
from shoal.server.transport import EpollPoller, TaskPoller
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


async def test_a_request_is_answered_and_the_connection_kept(each_poller):
    async with live(EchoApp()) as server, await server.connect() as client:
        for word in (b"once", b"again"):
            await client.send_all(request("/", method="POST", body=word))
            assert await read_until(client, word)


async def test_shutdown_lets_a_request_finish_and_then_ends_the_lifespan(each_poller, echo):
    async with live(echo) as server, await server.connect() as client:
        await client.send_all(request("/hold"))
        await echo.entered.wait()
        server.stop.set()
        await until_quiet()
        with pytest.raises(OSError, match=r"refused|attempts"):
            await server.connect()
        assert echo.lifespan_events == ["lifespan.startup"]
        echo.release.set()
        answer = await read_all(client)
    assert answer.endswith(b"held")
    assert b"connection: close" in answer.lower()
    assert (server.drained.finished, server.drained.cut) == (1, 0)
    assert echo.lifespan_events == ["lifespan.startup", "lifespan.shutdown"]


async def test_shutdown_closes_an_idle_connection_and_counts_what_it_was_served(each_poller):
    patient = live(EchoApp(), keep_alive_timeout_s=HANG_S * 2)
    async with patient as server, await server.connect() as client:
        for _ in range(2):
            await client.send_all(request("/"))
            await read_until(client, b"hello")
        await until_quiet()
        server.stop.set()
        assert await read_all(client) == b""
    drained = server.drained
    assert (drained.served, drained.finished, drained.cut) == (2, 0, 0)


async def test_shutdown_serves_connections_that_the_kernel_has_accepted():
    async with live(EchoApp()) as server:
        clients = [server.connect_now(request("/")) for _ in range(3)]
        server.stop.set()
    for client in clients:
        with client:
            assert client.recv(2**16).startswith(b"HTTP/1.1 200")
    assert server.drained.finished == 3


async def test_shutdown_serves_a_request_that_had_arrived_on_an_idle_connection():
    async with live(EchoApp()) as server:
        client = server.connect_now(request("/"))
        await until_quiet()
        client.sendall(request("/"))
        server.stop.set()
    with client, client.makefile("rb") as received:
        assert received.read().count(b"HTTP/1.1 200") == 2


async def test_shutdown_serves_a_request_that_arrives_in_the_very_moment(monkeypatch, echo):
    drain = Http1Connection.drain

    def drain_as_a_request_arrives(connection):
        client.sendall(request("/hold"))
        drain(connection)

    monkeypatch.setattr(Http1Connection, "drain", drain_as_a_request_arrives)
    async with live(echo) as server:
        client = server.connect_now()
        await until_quiet()
        server.stop.set()
        await echo.entered.wait()
        await anyio.wait_all_tasks_blocked()
        echo.release.set()
    with client, client.makefile("rb") as received:
        assert received.read().endswith(b"held")


async def test_shutdown_serves_a_request_that_came_in_time_while_the_loop_stood_still(monkeypatch):
    drain = Http1Connection.drain

    def drain_and_stand_still(connection):
        drain(connection)
        client.sendall(request("/"))
        time.sleep(0.1)

    monkeypatch.setattr(Http1Connection, "drain", drain_and_stand_still)
    monkeypatch.setattr("shoal.server.shared.Shared.late_request_s", 0.05)
    async with live(EchoApp()) as server:
        client = server.connect_now()
        await until_quiet()
        server.stop.set()
    with client, client.makefile("rb") as received:
        assert received.read().startswith(b"HTTP/1.1 200")


async def test_a_client_that_was_not_told_of_the_shutdown_may_ask_once_more(each_poller, echo):
    async with live(echo) as server, await server.connect() as client:
        await client.send_all(request("/begin"))
        await read_until(client, b"begun")
        server.stop.set()
        await anyio.wait_all_tasks_blocked()
        echo.release.set()
        assert b"connection: close" not in (await read_until(client, b"ended"))
        await client.send_all(request("/"))
        answer = await read_all(client)
    assert answer.endswith(b"hello")
    assert b"connection: close" in answer


async def test_shutdown_does_not_wait_for_a_request_behind_the_last_answer(echo):
    patient = live(echo, graceful_timeout_s=HANG_S * 2)
    async with patient as server, await server.connect() as client:
        await client.send_all(request("/hold") * 2)
        await echo.entered.wait()
        server.stop.set()
        await anyio.wait_all_tasks_blocked()
        echo.release.set()
        assert (await read_all(client)).count(b"held") == 1
    assert (server.drained.finished, server.drained.cut) == (1, 0)


async def test_a_new_http2_stream_is_refused_during_the_drain(each_poller, echo):
    async with live(echo) as server, http2(server) as client:
        held = client.ask(b"/hold")
        await client.flush()
        await echo.entered.wait()
        server.stop.set()
        await anyio.wait_all_tasks_blocked()
        late = client.ask(b"/")
        await client.flush()
        reset = await client.wait_for(h2.events.StreamReset, late)
        assert reset.error_code == 7  # REFUSED_STREAM
        echo.release.set()
        await client.wait_for(h2.events.StreamEnded, held)
    assert (server.drained.finished, server.drained.cut) == (1, 0)


async def test_shutdown_cuts_off_what_does_not_finish_in_time(each_poller, echo):
    async with live(echo, graceful_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(request("/begin"))
        await read_until(client, b"begun")
        server.stop.set()
        assert await read_all(client) == b"<reset>"
    assert (server.drained.finished, server.drained.cut) == (0, 1)
    assert server.drained.served == 0
    assert echo.lifespan_events == ["lifespan.startup", "lifespan.shutdown"]


async def test_a_websocket_is_told_that_the_server_restarts(each_poller):
    async with live(EchoApp()) as server, await server.connect() as client:
        await client.send_all(upgrade())
        await read_until(client, b"\r\n\r\n")
        peer = WebSocket(ConnectionType.CLIENT)
        await client.send_all(peer.send(TextMessage("ahoy")))
        peer.receive_data(await client.receive_some())
        assert [event.data for event in peer.events()] == ["ahoy"]
        server.stop.set()
        peer.receive_data(await client.receive_some())
        (closing,) = peer.events()
        assert isinstance(closing, CloseConnection)
        assert closing.code == 1012
        await client.send_all(peer.send(closing.response()))
        assert await read_all(client) == b""
    assert (server.drained.finished, server.drained.cut) == (1, 0)


async def test_a_connection_beyond_the_limit_waits(echo):
    async with live(echo, max_connections=1) as server:
        first, second = await server.connect(), await server.connect()
        await first.send_all(request("/hold", close=True))
        await second.send_all(request("/hold", close=True))
        await echo.entered.wait()
        await until_quiet()
        assert echo.running == 1
        echo.release.set()
        for client in (first, second):
            async with client:
                assert (await read_until(client, b"held")).startswith(b"HTTP/1.1 200")


async def test_reaching_the_limit_is_said_once(caplog):
    async with live(EchoApp(), max_connections=1) as server:
        for _ in range(3):
            assert await server.answers()
    assert [record.getMessage()[:28] for record in caplog.records] == [
        "the connection limit of 1 is"
    ]


async def test_an_application_without_a_lifespan_is_served():
    async def app(scope, receive, send):
        assert scope["type"] == "http"
        await EchoApp().answer(send, 200, b"plain")

    async with live(app) as server:
        assert (await server.talk(request("/", close=True))).endswith(b"plain")
    assert server.drained.failure is None


@pytest.mark.parametrize("says_so", [False, True])
async def test_an_application_that_does_not_start_is_not_served(says_so):
    async def app(scope, receive, send):
        await receive()
        if says_so:
            await send({"type": "lifespan.startup.failed", "message": "no luck"})
        raise LookupError("no weights in the file")

    with anyio.fail_after(HANG_S), pytest.raises(LifespanFailed) as caught:
        await serve(app, HttpOptions(port=0), shutdown=anyio.sleep_forever)
    why = "no luck" if says_so else "LookupError: no weights in the file"
    assert str(caught.value) == f"the application did not start: {why}"
    assert says_so or "in app" in caught.value.details


async def test_a_server_that_is_shut_down_while_it_starts_never_listens():
    async def app(scope, receive, send):
        await anyio.sleep_forever()

    with anyio.fail_after(HANG_S):
        drained = await serve(app, HttpOptions(port=0), shutdown=anyio.lowlevel.checkpoint)
    assert not drained.started


async def test_a_framework_that_reports_its_cancellation_has_not_failed_to_start():
    """As Starlette does."""

    async def app(scope, receive, send):
        await receive()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            await send({"type": "lifespan.startup.failed", "message": repr(error)})
            raise

    with anyio.fail_after(HANG_S):
        drained = await serve(app, HttpOptions(port=0), shutdown=anyio.lowlevel.checkpoint)
    assert not drained.started


async def test_a_lifespan_that_crashes_leaves_the_server_up(caplog):
    crash = anyio.Event()

    async def app(scope, receive, send):
        if scope["type"] != "lifespan":
            await EchoApp()(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await crash.wait()
        raise LookupError("lost the model")

    async with live(app) as server:
        crash.set()
        await anyio.wait_all_tasks_blocked()
        assert await server.answers()
    assert server.drained.failure.startswith("the application's lifespan ended early: LookupError")
    assert len(caplog.records) == 1


async def test_a_lifespan_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr("shoal.server.server._LIFESPAN_MARGIN_S", 0.05)

    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await anyio.sleep_forever()

    async with live(app, graceful_timeout_s=0.0) as server:
        pass
    assert server.drained.failure.startswith("the application did not shut down within")


async def test_cancelling_the_server_does_not_wait_for_a_client_that_does_not_read(each_poller):
    app = EchoApp()
    with anyio.fail_after(HANG_S), anyio.CancelScope() as scope:
        async with live(app, send_timeout_s=HANG_S * 2) as server:
            client = await server.connect()
            await client.send_all(request("/flood"))
            await app.entered.wait()
            await until_quiet()
            scope.cancel()
    await client.aclose()
    assert app.running == 0


async def test_a_websocket_is_not_opened_for_http_1_0():
    async with live(EchoApp()) as server:
        asked = upgrade().replace(b"HTTP/1.1", b"HTTP/1.0")
        assert (await server.talk(asked)).startswith(b"HTTP/1.1 200")


async def test_http_2_does_not_begin_behind_a_request_of_http_1():
    async with live(EchoApp()) as server:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        answer = await server.talk(request("/") + preface)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 400 Bad Request" in answer


async def test_a_connection_that_the_kernel_can_not_watch_does_not_hold_up_the_end(monkeypatch):
    def full(_poller, _transport):
        raise OSError(errno.ENOSPC, "no space left on device")

    for poller in (EpollPoller, TaskPoller):
        monkeypatch.setattr(poller, "add", full)
    async with live(EchoApp(), graceful_timeout_s=HANG_S * 2) as server:
        async with await server.connect() as client:
            assert await client.receive_some() == b""
        server.stop.set()
