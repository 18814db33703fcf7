"""Requests and answers of HTTP/1.1 on a real socket: their order, framing, deadlines and ends."""

import re
import socket
import struct

import anyio
import pytest
from live_server import live, read_all, read_until, request, until_quiet

pytestmark = pytest.mark.real_time


class App:
    """Answers by functions, one for each path; notes the paths, and what was read of each body.

    Its events are those of the tests: it sets `entered` at each call.
    """

    def __init__(self, **functions):
        self.functions = functions
        self.paths = []
        self.bodies = []
        self.entered = anyio.Event()
        self.release = anyio.Event()
        self.left = anyio.Event()

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        self.paths.append(scope["path"])
        self.entered.set()
        await self.functions.get(scope["path"].strip("/"), echo)(self, scope, receive, send)

    async def read(self, receive):
        """The body, or None if the client left; notes it."""
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return None
            body += message["body"]
            more = message["more_body"]
        self.bodies.append(bytes(body))
        return bytes(body)


async def answer(send, *parts, status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1] if parts else b""})


async def echo(app, scope, receive, send):
    body = await app.read(receive)
    await answer(send, scope["raw_path"] + body[:100] if body is not None else b"")


async def hold(app, scope, receive, send):
    await app.release.wait()
    await answer(send, b"held")


async def early(app, scope, receive, send):
    await answer(send, b"early", status=413)


async def parts(app, scope, receive, send):
    await answer(send, b"one", b"", b"two", b"")


def undated(received):
    return re.sub(rb"\r\ndate: [^\r]+", b"", received)


def whole(body, status=b"200 OK", *, closes=False):
    """The answer with this body, without its date."""
    close = b"connection: close\r\n" if closes else b""
    length = b"content-length: %d\r\n" % len(body)
    return b"HTTP/1.1 " + status + b"\r\n" + length + close + b"\r\n" + body


def refusal(received):
    """The status of an answer of the server's own, which is whole and says that it is the last."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-length: %d\r\n" % len(body) in head
    return int(head.removeprefix(b"HTTP/1.1 ")[:3])


@pytest.mark.parametrize("count", [2, 3, 4, 20])
async def test_requests_in_one_send_are_answered_in_order(count, each_poller):
    paths = [f"/{number}" for number in range(count)]
    sent = b"".join(map(request, paths[:-1])) + request(paths[-1], close=True)
    app = App()
    async with live(app) as server:
        received = undated(await server.talk(sent))
    assert app.paths == paths
    bodies = [whole(path.encode()) for path in paths[:-1]]
    assert received == b"".join(bodies) + whole(paths[-1].encode(), closes=True)


async def test_requests_that_come_while_another_is_answered_wait_for_its_answer():
    app = App(hold=hold)
    async with live(app) as server, await server.connect() as client:
        await client.send_all(request("/hold"))
        await app.entered.wait()
        for path in ("/a", "/b"):
            await client.send_all(request(path))
        await client.send_all(request("/c", close=True))
        await until_quiet()
        assert app.paths == ["/hold"]
        app.release.set()
        received = undated(await read_all(client))
    assert app.paths == ["/hold", "/a", "/b", "/c"]
    expected = [whole(b"held"), whole(b"/a"), whole(b"/b"), whole(b"/c", closes=True)]
    assert received == b"".join(expected)


async def test_more_requests_than_are_held_in_memory_are_all_answered(each_poller):
    async def send_all(client):
        for _ in range(count - 1):
            await client.send_all(request("/", headers=[f"X: {'a' * 200}"]))
        await client.send_all(request("/", close=True))

    count = 1_000
    app = App(hold=hold)
    async with live(app) as server, await server.connect() as client:
        await client.send_all(request("/hold"))
        await app.entered.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_all, client)
            await until_quiet()
            app.release.set()
            received = await read_all(client)
    assert received.count(b"HTTP/1.1 200 OK") == 1 + count
    assert len(app.paths) == 1 + count


async def test_a_request_that_is_cut_off_behind_another_is_awaited():
    app = App()
    second = request("/b", method="POST", body=b"body")
    async with live(app) as server, await server.connect() as client:
        for cut in range(1, len(second)):
            await client.send_all(request("/a") + second[:cut])
            await read_until(client, b"/a")
            await client.send_all(second[cut:])
            await read_until(client, b"/bbody")
    assert app.paths == ["/a", "/b"] * (len(second) - 1)


async def test_a_client_that_leaves_is_noticed_and_what_is_held_of_it_forgotten(each_poller):
    async def wait(app, scope, receive, send):
        await app.read(receive)
        await app.read(receive)

    app = App(wait=wait)
    async with live(app, max_connections=1) as server:
        client = await server.connect()
        await client.send_all(request("/wait") + request("/a") + b"GET /b HTT")
        await app.entered.wait()
        await client.aclose()
        await app.left.wait()
        assert await server.answers()
    assert app.paths == ["/wait", "/"]


async def test_a_client_that_breaks_off_while_its_answer_is_sent_frees_its_place():
    async def meet(app, scope, receive, send):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await answer(send, b"too late")

    async with live(App(meet=meet), max_connections=1) as server:
        client = server.connect_now(request("/meet"))
        assert await server.answers()


async def test_head_has_the_head_of_the_answer_alone_however_the_body_is_framed():
    async def sized(app, scope, receive, send):
        await answer(send, b"he", b"llo", headers=[(b"content-length", b"5")])

    app = App(sized=sized, parts=parts)
    async with live(app) as server, await server.connect() as client:
        for path in ("/sized", "/parts", "/echo"):
            await client.send_all(request(path, method="HEAD"))
            head = undated(await read_until(client, b"\r\n\r\n"))
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert head.endswith(b"\r\n\r\n")
            assert (b"content-length: 5\r\n" in head) == (path == "/sized")
        await client.send_all(request("/last", close=True))
        assert undated(await read_all(client)) == whole(b"/last", closes=True)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_content_is_its_head(status):
    async def nothing(app, scope, receive, send):
        await answer(send, b"dropped", status=status)

    async with live(App(nothing=nothing)) as server, await server.connect() as client:
        await client.send_all(request("/nothing") + request("/a", close=True))
        received = undated(await read_all(client))
    head, _, behind = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\n" not in head
    assert behind == whole(b"/a", closes=True)


async def test_an_answer_in_parts_is_chunked_and_leaves_the_connection_open():
    async with live(App(parts=parts)) as server:
        received = undated(await server.talk(request("/parts") + request("/a", close=True)))
    assert received == (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" + whole(b"/a", closes=True)
    )


async def test_an_answer_in_parts_ends_with_the_connection_for_http_1_0():
    async with live(App(parts=parts)) as server:
        received = undated(await server.talk(request("/parts").replace(b"1.1", b"1.0")))
    assert received == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonetwo"


@pytest.mark.parametrize("lines", [[], ["Connection: close"], ["Connection: keep-alive"]])
async def test_http_1_0_has_one_request_in_a_connection(lines):
    sent = request("/a", headers=lines).replace(b"1.1", b"1.0")
    async with live(App()) as server:
        assert undated(await server.talk(sent + sent)) == whole(b"/a", closes=True)


async def test_an_application_may_end_the_connection():
    async def last(app, scope, receive, send):
        await answer(send, b"last", headers=[(b"connection", b"close")])

    async with live(App(last=last)) as server:
        received = undated(await server.talk(request("/last") + request("/a")))
    assert received == whole(b"last", closes=True)


@pytest.mark.parametrize(
    "body",
    [(b"four",), (b"sixsix",), (b"fo", b"ur"), (b"six", b"six"), (), ("texts",), (None,), (5,)],
    ids=repr,
)
async def test_a_body_that_is_not_what_was_said_is_never_taken_for_whole(body, caplog):
    async def wrong(app, scope, receive, send):
        await answer(send, *body, headers=[(b"content-length", b"5")])

    async with live(App(wrong=wrong)) as server:
        received = await server.talk(request("/wrong") + request("/a"))
        assert await server.answers()
    _, _, sent = received.removesuffix(b"<reset>").partition(b"\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 500 ") or len(sent) < 5
    assert len(caplog.records) == 1


async def test_a_body_may_be_a_view_of_numbers():
    async def view(app, scope, receive, send):
        await answer(send, memoryview(b"abcd").cast("i"))

    async with live(App(view=view)) as server:
        assert undated(await server.talk(request("/view", close=True))) == whole(
            b"abcd", closes=True
        )


async def test_an_answer_before_the_body_has_come_is_the_last():
    app = App(early=early)
    async with live(app) as server, await server.connect() as client:
        await client.send_all(request("/early", method="POST", body=b"12345")[:-1])
        received = undated(await read_all(client))
        await client.send_all(b"5" + request("/a"))
    assert received == whole(b"early", b"413 Content Too Large", closes=True)
    assert app.paths == ["/early"]


async def test_a_refused_upload_that_goes_on_does_not_cost_the_client_its_answer():
    async with live(App(early=early), max_connections=1) as server:
        async with await server.connect() as client:
            await client.send_all(
                request("/early", method="POST", headers=["Content-Length: 99999999"])
            )
            for _ in range(20):
                await client.send_all(bytes(2**14))
            received = undated(await read_all(client))
        assert await server.answers()
    assert received == whole(b"early", b"413 Content Too Large", closes=True)


async def test_an_application_is_told_once_that_nothing_more_comes():
    async def listen(app, scope, receive, send):
        await app.read(receive)
        await answer(send, b"done")
        types.append((await receive())["type"])

    types = []
    async with live(App(listen=listen)) as server:
        await server.talk(request("/listen", close=True))
    assert types == ["http.disconnect"]


async def test_an_application_that_fails_within_its_answer_breaks_the_connection(caplog):
    async def fail(app, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise LookupError

    async with live(App(fail=fail)) as server:
        received = await server.talk(request("/fail") + request("/a"))
        assert await server.answers()
    assert received.endswith(b"<reset>")
    assert b"0\r\n\r\n" not in received
    assert len(caplog.records) == 1


async def test_an_application_that_returns_without_an_answer_is_an_error_of_the_server():
    async def nothing(app, scope, receive, send):
        pass

    async def head(app, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async with live(App(nothing=nothing, head=head)) as server:
        for path in ("/nothing", "/head"):
            assert refusal(await server.talk(request(path) + request("/a"))) == 500


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 2**14 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET /" + b"a" * 2**15, 414),
        (request("/", headers=[f"X: {'a' * 2**15}"]), 431),
        (request("/", headers=["X: a"] * 128), 431),
        (request("/")[:-2] + b"X: a\n", 400),
        (b"\x16\x03\x01", 400),
    ],
    ids=["target", "line", "head", "headers", "line feed", "TLS"],
)
async def test_what_is_refused_is_told_so_behind_the_answers_before_it(sent, status):
    app = App()
    async with live(app) as server:
        alone = undated(await server.talk(sent + request("/b")))
        behind = undated(await server.talk(request("/a") + sent + request("/b")))
    assert refusal(alone) == status
    assert behind == whole(b"/a") + alone
    assert app.paths == ["/a"]


@pytest.mark.parametrize("sent", [b"G", request("/")[:-1], request("/")[:-3]])
async def test_a_head_has_a_deadline(sent):
    async with live(App(), head_timeout_s=0.05, max_connections=1) as server:
        assert refusal(await server.talk(sent)) == 408
        received = undated(await server.talk(request("/a") + sent))
        assert received.startswith(whole(b"/a"))
        assert refusal(received.removeprefix(whole(b"/a"))) == 408
        assert await server.answers()


async def test_an_idle_connection_is_closed_without_a_word():
    async with live(App(), keep_alive_timeout_s=0.05, max_connections=1) as server:
        assert await server.talk(b"") == b""
        assert undated(await server.talk(request("/a"))) == whole(b"/a")
        assert await server.answers()


async def test_an_answer_may_take_longer_than_its_client():
    app = App(hold=hold)
    deadlines = {"keep_alive_timeout_s": 0.02, "head_timeout_s": 0.02, "body_timeout_s": 0.02}
    async with live(app, **deadlines) as server:
        client = server.connect_now(request("/hold", method="POST", body=b"a"))
        await app.entered.wait()
        await until_quiet()
        app.release.set()
        await until_quiet()
    with client, client.makefile("rb") as received:
        assert undated(received.read()) == whole(b"held")


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
async def test_a_body_has_a_deadline_and_its_application_is_told(framing):
    app = App()
    async with live(app, body_timeout_s=0.05, max_connections=1) as server:
        sent = request("/", method="POST", headers=[framing]) + b"1\r\n"
        assert refusal(await server.talk(sent)) == 408
        await app.left.wait()
        assert await server.answers()


async def test_the_deadline_of_a_body_does_not_run_while_its_application_does_not_read():
    async def slow(app, scope, receive, send):
        await anyio.sleep(0.4)  # longer than the client may take for what it has sent
        size = len((await receive())["body"])
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        client.sendall(body[size:])
        await app.read(receive)
        await answer(send, b"read")

    body = bytes(2**17)
    sent = request("/slow", method="POST", body=body, close=True)
    async with live(App(slow=slow), body_timeout_s=0.05) as server:
        client = server.connect_now(sent[: -(2**16) + 1])
        await until_quiet()
    with client, client.makefile("rb") as received:
        assert undated(received.read()) == whole(b"read", closes=True)
