"""What HTTP says of methods, expectations and status lines; what the server offers beyond ASGI."""

import socket
import struct
import weakref

import anyio
import h2.events
import h2.settings
import pytest
from echo_app import EchoApp
from live_server import Http2Client, http2, live, read_until, request, upgrade
from server_in_memory import asked, serving
from starlette.exceptions import HTTPException
from starlette.responses import Response

import shoal
from handlers import ask_once
from shoal.testing import settle
from shoal.testing.asgi import Call, ask
from time_limits import HANG_S

on_a_socket = pytest.mark.real_time

EXPECTING = ["Expect: 100-continue", "Content-Type: application/json"]


@pytest.fixture
def app():
    app = shoal.App(max_body_bytes=100)

    @app.endpoint("/double", methods=("GET", "POST"))
    async def double(items: list[bytes]) -> list[int]:
        return [2 * len(item) for item in items]

    @app.endpoint("/put", methods=("PUT",))
    async def put(items: list[bytes]) -> list[int]:
        return [len(item) for item in items]

    return app


# Expect: 100-continue


def asking_to_go_on(path, length, method="POST"):
    return request(path, method=method, headers=[*EXPECTING, f"Content-Length: {length}"])


@on_a_socket
@pytest.mark.parametrize(
    ("path", "length", "status"),
    [("/double", 20_000_000, 413), ("/nowhere", 5, 404), ("/put", 5, 405)],
)
async def test_what_is_refused_unread_is_refused_before_it_is_sent(app, path, length, status):
    async with live(app) as server, await server.connect() as client:
        await client.send_all(asking_to_go_on(path, length))
        answer = await read_until(client, b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"connection: close" in answer.lower()


@on_a_socket
async def test_a_client_that_resets_before_it_is_asked_for_the_rest_is_noticed():
    messages, ended = [], anyio.Event()

    async def app(scope, receive, _send):
        assert scope["type"] == "http"  # it has no lifespan
        messages.append(await receive())
        # The server has no turn to notice the reset before it asks for the rest.
        reset(client)
        messages.append(await receive())
        ended.set()

    async with live(app) as server:
        client = server.connect_now(asking_to_go_on("/", 5) + b"12")
        await ended.wait()
    assert [message["type"] for message in messages] == ["http.request", "http.disconnect"]


@on_a_socket
async def test_an_http2_client_that_resets_before_it_opens_its_window_is_noticed():
    ended = anyio.Event()

    async def app(scope, _receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await send({"type": "http.response.start", "status": 200, "headers": []})
        reset(client)
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        ended.set()

    asking = Http2Client(None)
    asking.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    asking.ask()
    async with live(app, send_timeout_s=10 * HANG_S) as server:
        client = server.connect_now(asking.connection.data_to_send())
        await ended.wait()


def reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@on_a_socket
async def test_an_answer_without_reading_the_whole_body_leaves_the_connection_open(app):
    whole = request("/nowhere", method="POST", headers=["Content-Length: 5"]) + b"12345"
    async with live(app) as server, await server.connect() as client:
        for _ in range(2):
            await client.send_all(whole)
            answer = await read_until(client, b'"}')
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b"connection: close" not in answer.lower()


async def told(scope, receive, send):
    """Says what it was asked for."""
    headers = dict(scope["headers"])
    body = b" ".join((scope["raw_path"], scope["query_string"], headers[b"host"]))
    assert scope["path"].encode() == scope["raw_path"]
    assert [name for name, _ in scope["headers"]].count(b"host") == 1
    await EchoApp().answer(send, 200, body)


@on_a_socket
@pytest.mark.parametrize(
    ("target", "asked_for"),
    [
        ("http://other.test/a/b?c=d", b"/a/b c=d other.test"),
        ("HTTP://other.test:8080/a", b"/a  other.test:8080"),
        ("https://[::1]:8080/a?", b"/a  [::1]:8080"),
        ("http://other.test", b"/  other.test"),
        ("http://other.test?c=d", b"/ c=d other.test"),
        ("http://other.test//b", b"//b  other.test"),
        ("http://other.test/http://b@c", b"/http://b@c  other.test"),
        ("/a?b=http://other.test/", b"/a b=http://other.test/ shoal.test"),
    ],
)
async def test_a_target_with_a_host_is_that_hosts_path(target, asked_for):
    app = shoal.App()
    app.mount("/", told)
    async with live(app) as server:
        answer = await server.talk(request(target, close=True))
        http_1_0 = await server.talk(f"GET {target} HTTP/1.0\r\nHost: shoal.test\r\n\r\n".encode())
    assert answer.endswith(b"\r\n\r\n" + asked_for)
    assert http_1_0.endswith(b"\r\n\r\n" + asked_for)


@on_a_socket
async def test_a_websocket_is_opened_by_its_url():
    paths = []

    async def accept(scope, receive, send):
        paths.append((scope["type"], scope["path"], dict(scope["headers"])[b"host"]))
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})

    app = shoal.App()
    app.mount("/", accept)
    handshake = upgrade().replace(b"GET / ", b"GET http://other.test/a ")
    async with live(app) as server, await server.connect() as client:
        await client.send_all(handshake)
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    assert paths == [("websocket", "/a", b"other.test")]


@on_a_socket
async def test_the_admin_api_checks_the_host_of_the_target(tmp_path):
    http = {"port": 0, "admin_socket": str(tmp_path / "admin")}
    async with shoal.start(http=http) as _:
        for target, host, status in [
            ("http://evil.test/-/api/status", "localhost", 421),
            ("http://localhost/-/api/status", "evil.test", 200),
        ]:
            async with await anyio.connect_unix(http["admin_socket"]) as client:
                sent = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                await client.send(sent.encode())
                assert (await client.receive()).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("path", ["/-/healthz", "/-/routes", "/double"])
async def test_head_is_answered_as_get_without_the_body(app, path):
    get, head = [await ask_once(app, path, method=method) for method in ("GET", "HEAD")]
    assert (head.status, head.body) == (200, b"")
    del get.headers["x-request-id"], head.headers["x-request-id"]
    assert head.headers == get.headers


async def test_head_is_refused_where_get_is(app):
    answer = await ask_once(app, "/put", method="HEAD")
    assert (answer.status, answer.headers["allow"]) == (405, "OPTIONS, PUT")
    assert answer.body == b""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/double", "GET, HEAD, OPTIONS, POST"),
        ("/put", "OPTIONS, PUT"),
        ("/-/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_options_and_refusals_name_the_methods(app, path, allowed):
    async with app.lifespan():
        options = await ask(app, path, method="OPTIONS")
        refused = await ask(app, path, method="DELETE")
    assert (options.status, options.body) == (204, b"")
    assert "content-length" not in options.headers
    assert options.headers["allow"] == refused.headers["allow"] == allowed
    assert refused.status == 405


def app_with_header(name, value):
    app = shoal.App()

    @app.endpoint("/", methods=("GET",))
    async def say(items: list[bytes]) -> list[Response]:
        response = Response(b"x")
        response.raw_headers.append((name, value))
        return [response] * len(items)

    async def bare(scope, receive, send):
        headers = [(name, value)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x"})

    app.mount("/bare", bare)
    return app


BAD_HEADERS = [
    (b"x-a", b"1\r\nx-b: 2"),
    (b"x-a", b"1\n2"),
    (b"x-a", b"\x00"),
    (b"x a", b"1"),
    (b"x-a\r\nx-b", b"1"),
    (b"", b"1"),
]


@pytest.mark.parametrize(("name", "value"), BAD_HEADERS, ids=repr)
async def test_a_handlers_header_that_could_forge_another_is_never_sent(name, value, caplog):
    app = app_with_header(name, value)
    answer = await ask_once(app, "/", method="GET")
    assert answer.status == 500
    assert "x-b" not in answer.headers
    assert "header" in caplog.text


@on_a_socket
@pytest.mark.parametrize(("name", "value"), BAD_HEADERS, ids=repr)
async def test_no_application_forges_a_header_on_either_protocol(name, value):
    async with live(app_with_header(name, value)) as server:
        answer = await server.talk(request("/bare", close=True))
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"x-b" not in answer
        async with http2(server) as client:
            client.ask(b"/bare")
            await client.flush()
            event = await client.wait_for(h2.events.ResponseReceived)
            assert dict(event.headers)[b":status"] == b"500"


async def test_a_refusal_of_a_handler_forges_no_header_either(caplog):
    app = shoal.App()

    @app.endpoint("/")
    async def refuse(items: list[int]) -> list[int]:
        raise HTTPException(401, headers={"www-authenticate": "x\r\nx-b: 2"})

    answer = await ask_once(app, "/", 1)
    assert answer.status == 500
    assert "www-authenticate" not in answer.headers
    assert "www-authenticate" in caplog.text


async def test_a_header_that_latin_1_lacks_fails_its_own_call_alone():
    app = shoal.App()

    @app.endpoint("/")
    async def say(items: list[str]) -> list[Response | Exception]:
        return [tried(item) for item in items]

    def tried(item):
        try:
            return Response(b"x", headers={"x-a": item})
        except UnicodeEncodeError as error:
            return error

    async with app.lifespan():
        for item, status in (("ü", 200), ("中", 500)):
            call = Call(app, "/", item=item)
            await call.run()
            assert call.status == status


OFTEN = {
    *("when_left", "is_cut_off", "refused_with", "send_timeout_s", "is_local"),
    *("respond", "whole_body"),
}


@on_a_socket
@pytest.mark.parametrize(
    ("version", "also"), [("1.1", {"heartbeat", "send", "has_room", "put"}), ("2", set())]
)
async def test_it_is_a_mapping(version, also):
    offered = {}

    async def app(scope, receive, send):
        nonlocal offered
        offered = scope["extensions"]["shoal.disconnect"]
        assert offered["send_timeout_s"] == 7
        assert offered["is_local"]
        assert not offered["is_cut_off"]()
        assert offered["refused_with"]() == 0
        assert offered["send"] == send if "send" in offered else scope["http_version"] == "2"
        await EchoApp().answer(send, 200, b"answered")

    async with live(app, send_timeout_s=7) as server, await server.connect() as client:
        if version == "2":
            peer = Http2Client(client)
            peer.ask(b"/")
            await peer.flush()
        else:
            await client.send_all(request("/"))
        await read_until(client, b"answered")
    assert set(offered) == set({**offered}) == OFTEN | also
    assert offered.get("note_trace") is None


@on_a_socket
@pytest.mark.parametrize("way", ["whole", "replaced", "begun", "without body", "wrong length"])
async def test_a_whole_request_and_response_pass_without_messages(way):
    failures = []

    async def app(scope, receive, send):
        async def replaced(*message):
            return await (send if message else receive)(*message)

        offered = scope["extensions"]["shoal.disconnect"]
        if way == "replaced":
            assert offered["whole_body"](replaced) is None
            assert not offered["respond"](replaced, 200, [], b"not sent")
        assert offered["whole_body"](receive) == b"item"
        assert offered["whole_body"](receive) is None
        if way == "begun":
            await send({"type": "http.response.start", "status": 201, "headers": []})
            assert not offered["respond"](send, 200, [], b"not sent")
            await send({"type": "http.response.body", "body": b"sent"})
            return
        status = 204 if way == "without body" else 201
        headers = [(b"content-length", b"5")] if way == "wrong length" else []
        try:
            assert offered["respond"](send, status, headers, b"sent")
        except RuntimeError as error:
            failures.append(str(error))

    async with live(app) as server, await server.connect() as client:
        await client.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nitem")
        head = await read_until(client, b"\r\n\r\n")
        if way == "without body":
            assert head.startswith(b"HTTP/1.1 204 ")
            assert b"content-length" not in head
        elif way == "wrong length":
            assert head.startswith(b"HTTP/1.1 500 ")
            assert failures
        else:
            assert head.startswith(b"HTTP/1.1 201 ")
            if not head.endswith(b"sent"):
                await read_until(client, b"sent")


@on_a_socket
async def test_a_body_that_is_not_whole_yet_is_received():
    began = anyio.Event()

    async def app(scope, receive, send):
        assert scope["extensions"]["shoal.disconnect"]["whole_body"](receive) is None
        began.set()
        body = (await receive())["body"] + (await receive())["body"]
        await EchoApp().answer(send, 200, body)

    async with live(app) as server, await server.connect() as client:
        await client.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nit")
        await began.wait()
        await client.send_all(b"em")
        await read_until(client, b"item")


@on_a_socket
async def test_a_server_of_public_hosts_is_not_local():
    offered = []

    async def app(scope, receive, send):
        offered.append(scope["extensions"]["shoal.disconnect"]["is_local"])
        await EchoApp().answer(send, 200, b"answered")

    async with live(app, allowed_hosts=["api.example.com"]) as server:
        assert b"answered" in await server.talk(
            request("/", close=True).replace(b"shoal.test", b"localhost")
        )
    assert offered == [False]


@on_a_socket
async def test_it_also_has_where_to_note_a_trace_if_there_is_an_access_log():
    noted = anyio.Event()

    async def app(scope, receive, send):
        scope["extensions"]["shoal.disconnect"]["note_trace"](("a" * 32, "b" * 16))
        noted.set()
        await EchoApp().answer(send, 200, b"answered")

    async with live(app, access_log=True) as server, await server.connect() as client:
        await client.send_all(request("/"))
        await read_until(client, b"answered")
    assert noted.is_set()


async def test_nothing_is_put_before_an_answer_has_begun_or_after_its_end():
    async def app(scope, receive, send):
        offered = scope["extensions"]["shoal.disconnect"]
        offered["put"](b"too early")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        offered["put"](b"still too early")
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        offered["put"](b"b")
        await send({"type": "http.response.body", "body": b"c"})
        offered["put"](b"too late")

    async with serving(app) as server:
        client = server.connect()
        for _ in range(2):
            client.wire.sent = b""
            client.say(asked("/"))
            await settle()
            body = client.wire.sent.partition(b"\r\n\r\n")[2]
            assert body == b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_heartbeat_ends_with_its_response(is_whole):
    calls = []

    async def app(scope, receive, send):
        offered = scope["extensions"]["shoal.disconnect"]
        calls.append(weakref.ref(offered))
        offered["heartbeat"](2, b"beat")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if not is_whole:
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    async with serving(app) as server:
        server.connect().say(asked("/"))
        await settle()
        await anyio.sleep(2 if is_whole else 0)  # a whole response leaves it until its next beat
        assert calls[0]() is None
