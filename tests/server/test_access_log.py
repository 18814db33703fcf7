"""The logs of a server: of each request, if asked for, and of what clients do wrong."""

import json
import logging
import time
from types import SimpleNamespace

import anyio
import pytest
from echo_app import EchoApp
from live_server import Http2Client, http2, live, read_all, read_until, request
from server_in_memory import serving

from base_exceptions import Panic
from handlers import app_of, double
from shoal.commands.server.stderr import JsonFormatter, TextFormatter
from shoal.server.access_log import LOGGER, AccessLogLine
from shoal.server.log_errors import ClientFaults
from shoal.testing import settle


@pytest.fixture
def app():
    app = app_of(double, "/double")

    @app.endpoint("/hold")
    async def hold(items: list[int]):
        yield items
        await anyio.sleep_forever()

    @app.endpoint("/letters")
    async def letters(texts: list[str]):
        for letter in texts[0]:
            yield [letter]

    return app


@pytest.mark.real_time
async def test_each_request_is_a_line(app, logged):
    async with live(app, access_log=True) as server, await server.connect() as client:
        secrets = ["X-Request-ID: mine", "Authorization: Bearer s3cret"]
        asked = request("/double?token=s3cret", method="POST", body=b"21", headers=secrets)
        await client.send_all(asked)
        await read_until(client, b"42")
        await client.send_all(request("/nowhere"))
        await read_until(client, b"not-found")
    first, second = logged()
    assert set(first) == {
        *("time", "client", "protocol", "method", "path", "status", "bytes", "duration_s"),
        "request_id",
    }
    assert first["client"].startswith("127.0.0.1:")
    shown = ("protocol", "method", "path", "status", "bytes", "request_id")
    assert [first[name] for name in shown] == ["HTTP/1.1", "POST", "/double", 200, 2, "mine"]
    assert 0 <= first["duration_s"] < 20
    assert (second["status"], second["path"]) == (404, "/nowhere")
    assert second["request_id"] not in (None, "mine")
    assert "s3cret" not in json.dumps([first, second])


@pytest.mark.real_time
async def test_nothing_is_logged_unless_asked_for(app, logged):
    async with live(app) as server:
        await server.talk(request("/-/healthz", close=True))
    assert logged() == []


@pytest.mark.parametrize("path", ["/a\r\nb", '/"}', "/\udc80", "/a\x85b\u2028c\u2029\u00e9"])
def test_a_path_can_not_forge_a_line(logged, path, caplog):
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": path}
    AccessLogLine().write(scope)
    [line] = logged()
    assert line["status"] is None
    for form in (TextFormatter(), JsonFormatter()):
        assert len(form.format(caplog.records[-1]).splitlines()) == 1


@pytest.mark.real_time
async def test_the_bytes_of_a_stream_are_counted(app, logged):
    async with live(app, access_log=True) as server:
        answer = await server.talk(request("/letters", method="POST", body=b'"abc"', close=True))
    [line] = logged()
    chunks = answer.partition(b"\r\n\r\n")[2].split(b"\r\n")
    assert line["bytes"] == sum(int(size, 16) for size in chunks[:-2:2])
    assert line["request_id"].encode() in answer


@pytest.mark.real_time
async def test_a_client_that_leaves_a_server_is_logged_once(app, logged):
    async with live(app, access_log=True) as server, await server.connect() as client:
        await client.send_all(request("/hold", method="POST", body=b"1"))
        await read_until(client, b"data: 1")
    [line] = logged()
    assert (line["path"], line["status"]) == ("/hold", 200)
    assert line["bytes"] > 0


@pytest.fixture
def broken_filter():
    """Adds a filter that raises an error to a logger, until the test has ended."""
    added = []

    def add(name, error):
        def broken(_record):
            raise error

        added.append((logging.getLogger(name), broken))
        logging.getLogger(name).addFilter(broken)

    yield add
    for logger, broken in added:
        logger.removeFilter(broken)


@pytest.mark.real_time
async def test_a_broken_filter_of_the_log_ends_no_connection(app, logged, broken_filter, caplog):
    broken_filter(LOGGER, RuntimeError("a broken filter"))
    async with live(app, access_log=True) as server, await server.connect() as client:
        for _ in range(2):
            await client.send_all(request("/double", method="POST", body=b"21"))
            await read_until(client, b"42")
    assert "the access log failed" in caplog.text


async def test_a_broken_filter_of_the_servers_log_ends_at_most_its_connection(broken_filter):
    async def fails(_scope, _receive, _send):
        raise RuntimeError

    broken_filter("shoal.server", RuntimeError("a broken filter"))
    async with serving(fails) as server:
        clients = [await server.ask("/") for _ in range(2)]
    assert [client.statuses for client in clients] == [[500], [500]]


@pytest.mark.real_time
async def test_a_call_whose_line_ends_its_connection_is_counted(logged, broken_filter):
    broken_filter(LOGGER, Panic())
    async with live(EchoApp(), access_log=True) as server, http2(server) as client:
        client.ask()
        await client.flush()
        await read_all(client.stream)
    assert server.drained.served == 1


async def test_a_request_that_is_cut_off_is_logged_with_the_status_that_its_client_gets(logged):
    async def returns_when_cut_off(scope, receive, send):
        left = anyio.Event()
        scope["extensions"]["shoal.disconnect"]["when_left"](left.set)
        await left.wait()

    async with serving(returns_when_cut_off, access_log=True) as server:
        client = server.connect()
        client.ask("/")
        await settle()
        server.shared.end_early()
        await settle()
        assert client.statuses == [503]
    [line] = logged()
    assert line["status"] == 503


async def test_it_hides_no_extension_and_counts_what_the_server_sends_for_the_application(logged):
    async def app(scope, receive, send):
        offered = scope["extensions"]["shoal.disconnect"]
        assert offered["send"] == send
        await send({"type": "http.response.start", "status": 200, "headers": []})
        offered["put"](b"too early")
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        offered["put"](b"defg")
        await send({"type": "http.response.body", "body": b"hi"})

    async with serving(app, access_log=True) as server:
        client = server.connect()
        client.ask("/")
        await settle()
    [line] = logged()
    assert (line["status"], line["bytes"]) == (200, 9)


async def fails_after_the_start(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError


async def waits_after_the_start(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await anyio.sleep_forever()


async def answers_late(_scope, receive, send):
    while (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.start", "status": 499, "headers": []})
    await send({"type": "http.response.body", "body": b"abc"})


@pytest.mark.parametrize(
    ("app", "status"),
    [(fails_after_the_start, 500), (waits_after_the_start, 503), (answers_late, 400)],
)
async def test_the_response_of_the_server_is_logged_in_place_of_the_applications(
    logged, app, status
):
    async with serving(app, access_log=True) as server:
        client = server.connect()
        client.say(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await settle()
        server.shared.end_early() if status == 503 else client.say(b"no chunk\r\n")
        await settle()
        [(sent, body)] = client.answers
        server.tasks.cancel_scope.cancel()
    [line] = logged()
    assert (line["status"], line["bytes"]) == (sent, len(body)) == (status, len(body))


SECRET = "canary-7b2e"


def fail(faults, times=1):
    for _ in range(times):
        with faults.contained("192.0.2.1:5"):
            raise ValueError(SECRET)


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.INFO]


def test_a_fault_is_one_line_with_the_address_and_the_kind(caplog):
    fail(ClientFaults(time.monotonic))
    assert warnings(caplog) == ["an error ended the connection from 192.0.2.1:5: ValueError"]
    assert caplog.records[-1].exc_info is None


def test_all_kinds_in_a_group_are_told_once(caplog):
    with ClientFaults(time.monotonic).contained("a"):
        group = ExceptionGroup("", [KeyError(SECRET), OSError(SECRET), KeyError(SECRET)])
        raise ExceptionGroup(SECRET, [group, group])
    assert warnings(caplog) == ["an error ended the connection from a: KeyError, OSError"]


def test_the_traceback_is_for_those_who_debug(caplog):
    caplog.set_level(logging.DEBUG, "shoal.server")
    fail(ClientFaults(time.monotonic))
    assert [one.levelno for one in caplog.records if one.exc_info] == [logging.DEBUG]


def test_there_are_ten_lines_a_minute_and_then_their_number(caplog):
    clock = SimpleNamespace(now_s=0.0)
    faults = ClientFaults(lambda: clock.now_s)
    fail(faults, 1000)
    assert len(warnings(caplog)) == 10
    clock.now_s = 59.9
    fail(faults)
    assert len(warnings(caplog)) == 10
    clock.now_s = 60.0
    fail(faults)
    assert warnings(caplog)[10:] == [
        "991 more connections ended by errors",
        "an error ended the connection from 192.0.2.1:5: ValueError",
    ]


@pytest.mark.parametrize("passing", [KeyboardInterrupt, SystemExit])
def test_what_is_no_fault_of_a_client_passes(passing, caplog):
    faults = ClientFaults(time.monotonic)
    with pytest.raises(passing), faults.contained("a"):
        raise passing
    with pytest.RaisesGroup(passing), faults.contained("a"):
        raise BaseExceptionGroup("", [passing(), ValueError(SECRET)])
    assert warnings(caplog) == ["an error ended the connection from a: ValueError"]


@pytest.mark.real_time
async def test_a_flood_of_faults_on_a_server_is_ten_lines_without_what_was_sent(caplog):
    caplog.set_level(logging.INFO)
    async with live(EchoApp()) as server:
        for _ in range(12):
            client = Http2Client(await server.connect())
            # One reset too many is an error.
            for _ in range(102):
                asked = client.ask(f"/hold?{SECRET}".encode())
                client.connection.reset_stream(asked)
            await client.flush()
            await read_all(client.stream)
            await client.stream.aclose()
        assert await server.answers()
    lines = [one for one in warnings(caplog) if "an error ended the connection" in one]
    assert len(lines) == 10
    assert not any(SECRET in caplog.handler.format(one) for one in caplog.records)
