"""Where the body of a request ends, however it arrives, and that nothing hides behind it."""

import re

import anyio
import pytest
import trio.testing
from live_server import live, read_all, read_until, request, until_quiet
from test_http1_answers import App, answer, echo

from shoal.asgi.headers import BadRequest
from shoal.server.http1.body import ChunkedBody, SizedBody
from shoal.server.shared import Shared
from shoal.server.transport import Transport
from time_limits import HANG_S

on_a_socket = pytest.mark.real_time
BEHIND = b"GET / HTTP/1.1\r\n"


def read_body(reader, *pieces):
    body = rest = b""
    for piece in pieces:
        if reader.is_complete:
            rest += piece
        else:
            part, rest = reader.feed(piece)
            body += part
            assert reader.is_complete or not rest
    return body, rest


def splits(data):
    yield [data]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    yield [data[at : at + 1] for at in range(len(data))]


def status_of_refused(data):
    """The one status with which a chunked body is refused, however it arrives."""
    found = set()
    for pieces in splits(data):
        with pytest.raises(BadRequest) as caught:
            read_body(ChunkedBody(), *pieces)
        found.add(caught.value.status)
    (status,) = found
    return status


@pytest.mark.parametrize("length", [1, 2, 5, 11])
def test_a_body_of_known_length_ends_there_however_it_arrives(length):
    data = b"hello\r\n0\r\n\r\n"[:length] + BEHIND
    for pieces in splits(data):
        reader = SizedBody(length)
        assert read_body(reader, *pieces) == (data[:length], BEHIND)
        assert reader.is_complete


@pytest.mark.parametrize(
    ("chunks", "body"),
    [
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", b"abc"),
        (b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2),
        (b"5\r\n0\r\n\r\n\r\n000\r\n\r\n", b"0\r\n\r\n"),
        (b"000000000000005\r\nhello\r\n000000000000000\r\n\r\n", b"hello"),
        (b"0" * 64 + b"5\r\nhello\r\n" + b"0" * 65 + b"\r\n\r\n", b"hello"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
        (b"1\r\na\r\n0\r\nX: b\r\ny:\r\nZ:\tc\xff\r\n\r\n", b"a"),
        (b"0\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n", b""),
    ],
)
def test_chunks_are_joined_and_trailers_dropped_however_they_arrive(chunks, body):
    for pieces in splits(chunks + BEHIND):
        reader = ChunkedBody()
        assert read_body(reader, *pieces) == (body, BEHIND)
        assert reader.is_complete
    for size in range(len(chunks)):
        reader = ChunkedBody()
        read_body(reader, chunks[:size])
        assert not reader.is_complete


def test_a_part_of_a_chunk_is_given_at_once():
    reader = ChunkedBody()
    assert reader.feed(b"fff\r\nab") == (b"ab", b"")
    assert reader.feed(b"cd") == (b"cd", b"")
    assert not reader.is_complete


@pytest.mark.parametrize(
    "size",
    [
        *(b"5;", b"5;a=b", b"5 ", b"5\t", b" 5", b"5 ;a", b"+5", b"-5", b"0x5", b"", b"g", b"5_0"),
        *(b"5\n", b"5\0", b"5\r", b"0" * 80 + b"5", b"f" * 16, b"\xb2", b"5.0", b"5,5", b"\n5"),
    ],
)
def test_a_chunk_size_is_15_hexadecimal_digits_behind_zeros_at_most_and_nothing_else(size):
    assert status_of_refused(size + b"\r\nhello\r\n0\r\n\r\n") == 400
    assert status_of_refused(b"1\r\na\r\n" + size + b"\r\nhello\r\n0\r\n\r\n") == 400


@pytest.mark.parametrize("line_break", [b"", b"\n", b"\r", b"x", b"x\r\n", b"\rx\n", b"\n\r"])
def test_a_chunk_is_as_long_as_it_says(line_break):
    assert status_of_refused(b"5\r\nhello" + line_break + b"0\r\n\r\n") == 400


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"X",
            b": a",
            b"X : a",
            b" X: a",
            b"X: \0",
            b"X: \x01",
            b"X: \x7f",
            b"X: a\rb",
            b"X: a\r",
        ),
        *(b"X: a\n", b"X: a\nY: b", b"X: a\r\n b", b"\n", b"\xe9: a", b"X(: a", b"\0", b"X\0: a"),
    ],
)
def test_a_malformed_trailer_is_refused(line):
    assert status_of_refused(b"0\r\n" + line + b"\r\n\r\n") == 400
    assert status_of_refused(b"0\r\nA: b\r\n" + line + b"\r\n\r\n") == 400


def test_trailers_may_have_8_kib():
    most = b"X: " + b"a" * (2**13 - 5) + b"\r\n"
    assert read_body(ChunkedBody(), b"0\r\n" + most + b"\r\n" + BEHIND) == (b"", BEHIND)
    too_long = [most[:-2] + end for end in (b"a\r\n\r\n", b"aaa")]
    for trailers in (*too_long, b"X: a\r\n" + most, b"a" * 2**13 + b"a"):
        with pytest.raises(BadRequest) as caught:
            read_body(ChunkedBody(), b"0\r\n" + trailers)
        assert caught.value.status == 431


# Behind a request may be another one, which a parser that takes it lightly reads in its place.

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: shoal.test\r\n\r\n"
EMPTY = b"0\r\n\r\n"


def post(*lines, body=EMPTY):
    head = ["POST /first HTTP/1.1", "Host: shoal.test", *lines, "", ""]
    return "\r\n".join(head).encode() + body


CHUNKED = "Transfer-Encoding: chunked"


async def late(app, *call):
    await app.release.wait()
    await echo(app, *call)


@pytest.fixture
def noting():
    """An application that waits before it reads a body that is sent to ``/late``."""
    return App(late=late)


@on_a_socket
async def test_what_is_behind_a_request_that_ends_in_one_way_is_the_next(noting):
    bodies = [b"GET / HTTP/1.1\r\n\r\n", b"123", b"", b"4"]
    sent = post("Content-Length: 18", body=bodies[0])
    sent += post(CHUNKED, body=b"3\r\n123\r\n0\r\nX: a\r\n\r\n") + request("/second")
    sent += request("/third", method="POST", body=b"4", close=True)
    async with live(noting) as server:
        answers = await server.talk(sent + SMUGGLED)
    assert answers.count(b"HTTP/1.1 200 ") == 4
    assert noting.paths == ["/first", "/first", "/second", "/third"]
    assert noting.bodies == bodies


@on_a_socket
async def test_a_request_may_come_byte_by_byte(each_poller, noting):
    sent = request("/", method="POST", body=b"12")
    sent += post(CHUNKED, "Connection: close", body=b"1\r\n3\r\n0\r\nX: a\r\n\r\n")
    async with live(noting) as server, await server.connect() as client:
        for at in range(len(sent)):
            await client.send_all(sent[at : at + 1])
        assert (await read_all(client)).count(b"HTTP/1.1 200 ") == 2
    assert noting.bodies == [b"12", b"3"]


@on_a_socket
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_read_late_waits_in_the_kernel_and_comes_whole(
    is_chunked, each_poller, noting
):
    async def send_all():
        await client.send_all(sent + request("/", close=True))
        is_sent.set()

    piece = bytes(range(256)) * 2**8
    if is_chunked:
        chunks = b"10000\r\n%b\r\n" % piece * 2**8
        sent = request("/late", method="POST", headers=[CHUNKED]) + chunks + EMPTY
    else:
        sent = request("/late", method="POST", body=piece * 2**8)
    is_sent = anyio.Event()
    async with (
        live(noting) as server,
        await server.connect() as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(send_all)
        await noting.entered.wait()
        await until_quiet()
        assert not is_sent.is_set()
        noting.release.set()
        assert (await read_all(client)).count(b"HTTP/1.1 200 ") == 2
    assert noting.bodies == [piece * 2**8, b""]


@on_a_socket
async def test_a_body_that_was_held_behind_an_answer_has_its_deadline(noting):
    """So much of it was held that the application should read before more is taken."""
    held = request("/second", method="POST", headers=["Content-Length: 200000"]) + bytes(100_000)
    async with live(noting, body_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(request("/late"))
        await noting.entered.wait()
        for piece in (held[:60_000], held[60_000:]):  # the second one meets one that is not full
            await client.send_all(piece)
            await until_quiet()
        noting.release.set()
        with anyio.fail_after(HANG_S / 2):
            answers = await read_all(client)
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) == [b"200", b"408"]


@on_a_socket
async def test_a_body_of_which_a_part_comes_just_at_its_deadline_has_another(monkeypatch, noting):
    """A busy event loop reads that part only when the deadline has passed."""
    async with live(noting, body_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(request("/", method="POST", headers=["Content-Length: 5"]))
        await noting.entered.wait()
        ready = Transport.ready
        monkeypatch.setattr(Transport, "ready", lambda at, events: events or ready(at, 0))
        monkeypatch.setattr(Shared, "linger_s", 0.05)
        await client.send_all(b"1")
        with anyio.fail_after(HANG_S / 2):
            assert (await read_all(client)).startswith(b"HTTP/1.1 408 ")


@on_a_socket
async def test_a_client_that_has_sent_much_may_be_silent_for_no_longer(monkeypatch, noting):
    monkeypatch.setattr(Shared, "linger_s", 0.05)
    sent = request("/", method="POST", headers=["Content-Length: 9000000"]) + bytes(8_000_000)
    async with live(noting, body_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(sent)
        with anyio.fail_after(HANG_S / 4):
            assert (await read_all(client)).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_sends_16_kib_in_each_time_limit_may_take_longer_in_all():
    clock = trio.testing.MockClock()

    async def upload():
        async def app(scope, receive, send):
            nonlocal size
            assert scope["type"] == "http"  # it has no lifespan
            with received:
                while size < 2**16:
                    received.send_nowait(size)  # what it has when it asks for more
                    size += len((await receive())["body"])
            await answer(send, status=204)

        size = 0
        received, sizes = anyio.create_memory_object_stream[int](100)
        head = request("/", method="POST", headers=["Content-Length: 65536"])
        with sizes:
            async with live(app, body_timeout_s=10) as server, await server.connect() as client:
                await client.send_all(head)
                for sent in range(0, 2**16, 2**14):
                    while await sizes.receive() < sent:
                        pass
                    await anyio.wait_all_tasks_blocked()
                    clock.jump(9)
                    await client.send_all(bytes(2**14))
                assert b"204" in await client.receive_some()

    anyio.run(upload, backend="trio", backend_options={"clock": clock})


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def expecting(path, version="1.1"):
    head = f"POST {path} HTTP/{version}\r\nHost: shoal.test\r\nContent-Length: 2\r\n"
    return head.encode() + b"Expect: 100-continue\r\n\r\n"


@on_a_socket
async def test_a_body_is_asked_for_once_when_the_application_reads(noting):
    async with live(noting) as server, await server.connect() as client:
        await client.send_all(expecting("/late"))
        await noting.entered.wait()
        with anyio.move_on_after(0.05):
            raise AssertionError(await client.receive_some())
        noting.release.set()
        assert await read_until(client, b"\r\n\r\n") == CONTINUE
        for piece in (b"1", b"2"):
            await client.send_all(piece)
            await until_quiet()
        assert (await read_until(client, b"12")).startswith(b"HTTP/1.1 200 OK\r\n")
        await client.send_all(expecting("/again"))
        assert await read_until(client, b"\r\n\r\n") == CONTINUE


@on_a_socket
async def test_a_body_is_asked_for_by_an_application_that_has_given_the_head_of_its_answer():
    """The server keeps the head until the body of the answer begins."""

    async def app(scope, receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": (await receive())["body"]})

    async with live(app) as server, await server.connect() as client:
        await client.send_all(expecting("/"))
        with anyio.fail_after(HANG_S / 2):
            assert await read_until(client, b"\r\n\r\n") == CONTINUE
        await client.send_all(b"12")
        assert (await read_until(client, b"12")).startswith(b"HTTP/1.1 200 OK\r\n")


@on_a_socket
async def test_a_body_that_has_come_is_not_asked_for(noting):
    async with live(noting) as server, await server.connect() as client:
        await client.send_all(expecting("/") + b"12")
        assert (await read_until(client, b"12")).startswith(b"HTTP/1.1 200 OK\r\n")


@on_a_socket
async def test_the_body_of_an_http_1_0_client_is_not_asked_for(noting):
    """RFC 9110, section 10.1.1: that version has no such answer."""
    async with live(noting) as server, await server.connect() as client:
        await client.send_all(expecting("/", version="1.0"))
        await noting.entered.wait()
        await client.send_all(b"12")
        assert (await read_all(client)).startswith(b"HTTP/1.1 200 OK\r\n")
