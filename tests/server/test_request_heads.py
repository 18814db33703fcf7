"""One check of the head of a request: HTTP/1.1, HTTP/2 and WebSocket over both refuse the same."""

import json
from contextlib import asynccontextmanager

import h2.errors
import h2.events
import pytest
from echo_app import EchoApp
from live_server import Http2Client, live, read_until, request, upgrade

pytestmark = pytest.mark.real_time

HTTP2 = "http2"
WEBSOCKET = "websocket over http2"
KINDS = [HTTP2, WEBSOCKET]


def head_of(kind, changed=(), more=()):
    """The header list of a request over HTTP/2, with some pseudo-headers changed or left out."""
    pseudo = {
        b":method": b"CONNECT" if kind is WEBSOCKET else b"GET",
        b":scheme": b"http",
        b":path": b"/",
        b":authority": b"shoal.test",
    }
    more = list(more)
    if kind is WEBSOCKET:
        pseudo[b":protocol"] = b"websocket"
        more.append((b"sec-websocket-version", b"13"))
    pseudo |= dict(changed)
    return [*((name, value) for name, value in pseudo.items() if value is not None), *more]


async def status_of(client, headers, *, end=True):
    stream_id = client.connection.get_next_available_stream_id()
    client.connection.send_headers(stream_id, headers, end_stream=end)
    await client.flush()
    event = await client.wait_for(h2.events.ResponseReceived, stream_id)
    return int(dict(event.headers)[b":status"])


@asynccontextmanager
async def http2(app=None, **options):
    async with live(app or EchoApp(), **options) as server, await server.connect() as stream:
        client = Http2Client(stream)
        await client.flush()
        yield client


async def refused_beside_others(headers, **options):
    """The status of a refused request, while another one of its connection is answered."""
    async with http2(**options) as client:
        other = client.ask(b"/sent", method=b"POST", end=False)
        status = await status_of(client, headers, end=b":protocol" not in dict(headers))
        client.connection.send_data(other, b"kept", end_stream=True)
        await client.flush()
        assert (await client.wait_for(h2.events.DataReceived, other)).data == b"kept"
        assert await status_of(client, head_of(HTTP2)) == 200
        return status


MALFORMED = {
    "a path that is not ASCII": {b":path": b"/\x80"},
    "a query that is not ASCII": {b":path": b"/?a=\xe9"},
    "a space in the path": {b":path": b"/a b"},
    "a space in the query": {b":path": b"/?a b"},
    "a control character in the query": {b":path": b"/?a\x01b"},
    "a line break in the path": {b":path": b"/ HTTP/1.1\r\nx: y"},
    "DEL in the path": {b":path": b"/\x7f"},
    "an empty path": {b":path": b""},
    "no path": {b":path": None},
    "a path without a slash": {b":path": b"a"},
    "a whole URL as the path": {b":path": b"http://shoal.test/"},
    "no scheme": {b":scheme": None},
    "another scheme": {b":scheme": b"ftp"},
    "no authority": {b":authority": None},
    "a space in the authority": {b":authority": b"shoal test"},
    "an authority that is not ASCII": {b":authority": b"shoal\xe9.test"},
    "a user in the authority": {b":authority": b"me@shoal.test"},
    "a line break in the authority": {b":authority": b"shoal.test\r\nx: y"},
}
FIELDS = {
    "an upper-case name": (b"X-A", b"b"),
    "a space in a name": (b"x a", b"b"),
    "a colon in a name": (b"x:a", b"b"),
    "a name that is not ASCII": (b"x\xe9", b"b"),
    "an empty name": (b"", b"b"),
    "a line break in a name": (b"x\r\ny", b"b"),
    "NUL in a value": (b"x", b"a\0b"),
    "ESC in a value": (b"x", b"a\x1bb"),
    "DEL in a value": (b"x", b"a\x7fb"),
    "a line break in a value": (b"x", b"a\r\ny: b"),
    "a line feed in a value": (b"x", b"a\nb"),
    "a carriage return in a value": (b"x", b"a\rb"),
    "the end of the head in a value": (b"x", b"\r\n\r\n"),
    "a space before a value": (b"x", b" a"),
    "a tab after a value": (b"x", b"a\t"),
    "a header of the connection": (b"connection", b"close"),
    "keep-alive": (b"keep-alive", b"timeout=5"),
    "proxy-connection": (b"proxy-connection", b"close"),
    "a transfer coding": (b"transfer-encoding", b"chunked"),
    "an upgrade": (b"upgrade", b"websocket"),
    "another TE than trailers": (b"te", b"gzip"),
    "another host": (b"host", b"other.test"),
    "an unknown pseudo-header": (b":other", b"a"),
    "a pseudo-header after the others": (b":path", b"/"),
}


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changed", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_request_line_ends_its_stream_alone(kind, changed):
    assert await refused_beside_others(head_of(kind, changed)) == 400


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
async def test_a_malformed_header_ends_its_stream_alone(kind, field):
    assert await refused_beside_others(head_of(kind, more=[field])) == 400


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("method", "status"),
    [(b"G\x80T", 400), (b"G T", 400), (b"", 400), (b"A" * 33, 400), (b"get", 501), (None, 400)],
)
async def test_a_malformed_method_ends_its_stream_alone(method, status):
    assert await refused_beside_others(head_of(HTTP2, {b":method": method})) == status


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({b":protocol": None}, 400),
        ({b":protocol": None, b":path": None, b":scheme": None}, 400),
        ({b":protocol": b"other"}, 501),
        ({b":method": b"GET"}, 400),
    ],
    ids=["CONNECT alone", "a tunnel", "another protocol", "a protocol without CONNECT"],
)
async def test_connect_opens_websockets_only(changed, status):
    headers = head_of(WEBSOCKET, changed)
    assert await refused_beside_others(headers) == status


async def test_a_pseudo_header_stands_once():
    headers = [(b":method", b"GET"), *head_of(HTTP2)]
    assert await refused_beside_others(headers) == 400


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changed", "more", "status"),
    [
        ({b":path": b"/" + b"a" * 2**14}, [], 414),
        ({b":path": b"/" + b"a" * 2**15}, [], 414),
        ({}, [(b"x", b"a")] * 128, 431),
        ({}, [(b"x", b"a")] * 1000, 431),
        ({}, [(b"x", b"a" * 2**10)] * 32, 431),
        ({}, [(b"x", b"a" * 2**10)] * 64, 431),
        ({}, [(b"x", b"a" * 2**12)] * 60, 431),
    ],
    ids=["17 KiB target", "33 KiB target", "129", "1001", "33 KiB", "64 KiB", "240 KiB"],
)
async def test_a_large_head_ends_its_stream_alone(kind, changed, more, status):
    assert await refused_beside_others(head_of(kind, changed, more)) == status


LIMITS = {"max_head_bytes": 600, "max_headers": 8, "max_target_bytes": 100}
OVER = [
    ({b":path": b"/" + b"a" * 100}, [], 414),
    ({}, [(b"x", b"a")] * 9, 431),
    ({}, [(b"x", b"a" * 600)], 431),
]


@pytest.mark.parametrize(("changed", "more", "status"), OVER)
async def test_the_limits_of_a_head_are_options(changed, more, status):
    assert await refused_beside_others(head_of(HTTP2, changed, more), **LIMITS) == status
    lines = [f"{name.decode()}: {value.decode()}" for name, value in more]
    path = changed.get(b":path", b"/").decode()
    async with live(EchoApp(), **LIMITS) as server:
        answer = await server.talk(request(path, headers=lines))
        assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_a_head_within_the_limits_passes_over_both():
    at_most = [(b"x", b"a" * 2**10)] * 31
    async with http2() as client:
        assert await status_of(client, head_of(HTTP2, more=at_most)) == 200
    async with live(EchoApp()) as server:
        headers = [f"x: {'a' * 2**10}"] * 31
        assert (await server.talk(request("/", headers=headers, close=True)))[9:12] == b"200"


@pytest.mark.one_loop
@pytest.mark.parametrize("host", ["shoal test", "shoal\xe9.test", "me@shoal.test", "a/b", "[::1"])
async def test_a_malformed_host_is_refused_over_http_1_1_as_well(host):
    sent = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
    async with live(EchoApp()) as server:
        assert (await server.talk(sent)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.one_loop
@pytest.mark.parametrize("host", [b"[::1]:8000", b"shoal_1.test:80", b"127.0.0.1:", b"sho%41l"])
async def test_a_host_may_be_a_name_or_an_address_with_a_port(host):
    async with http2() as client:
        assert await status_of(client, head_of(HTTP2, {b":authority": host})) == 200
        headers = head_of(HTTP2, {b":authority": None}, [(b"host", host)])
        assert await status_of(client, headers) == 200
    async with live(EchoApp()) as server:
        sent = b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % host
        assert (await server.talk(sent)).startswith(b"HTTP/1.1 200 ")


async def test_a_handshake_with_a_subprotocol_that_is_not_ascii_is_refused_over_both():
    field = (b"sec-websocket-protocol", b"\xff")
    assert await refused_beside_others(head_of(WEBSOCKET, more=[field])) == 400
    async with live(EchoApp()) as server:
        sent = upgrade("Sec-WebSocket-Protocol: \xff")
        assert (await server.talk(sent)).startswith(b"HTTP/1.1 400 ")


async def test_a_refusal_says_why_and_asks_for_no_more_of_the_body():
    async with http2() as client:
        stream_id = client.connection.get_next_available_stream_id()
        client.connection.send_headers(stream_id, head_of(HTTP2, {b":path": b"/\r"}))
        await client.flush()
        events = []
        while not (events and isinstance(events[-1], h2.events.StreamReset)):
            events += client.connection.receive_data(await client.stream.receive_some())
        [data] = [one.data for one in events if isinstance(one, h2.events.DataReceived)]
        detail = json.loads(data)["detail"]
        assert (detail, events[-1].error_code) == ("a line break in a head", 0)


TRAILERS = {
    "an upper-case name": [(b"X-A", b"b")],
    "a space in a name": [(b"x a", b"b")],
    "ESC in a value": [(b"x", b"a\x1bb")],
    "a line break in a value": [(b"x", b"a\r\nb")],
    "a pseudo-header": [(b":path", b"/")],
    "a header of the connection": [(b"connection", b"close")],
}


async def ended_by_trailers(client, trailers):
    stream_id = client.ask(b"/sent", method=b"POST", end=False)
    client.connection.send_data(stream_id, b"a body")
    client.connection.send_headers(stream_id, trailers, end_stream=True)
    await client.flush()
    event = await client.wait_for(h2.events.ResponseReceived, stream_id)
    assert await status_of(client, head_of(HTTP2)) == 200
    return int(dict(event.headers)[b":status"])


@pytest.mark.parametrize("trailers", TRAILERS.values(), ids=TRAILERS)
async def test_malformed_trailers_end_their_stream_alone(trailers):
    async with http2() as client:
        assert await ended_by_trailers(client, trailers) == 400


async def test_trailers_have_the_same_limit_over_both_and_are_dropped():
    async with http2() as client:
        assert await ended_by_trailers(client, [(b"x", b"a" * 2**13)]) == 431
        assert await ended_by_trailers(client, [(b"x", b"a" * 2**12)]) == 200
    async with live(EchoApp()) as server, await server.connect() as client:
        chunked = request("/sent", method="POST", headers=["Transfer-Encoding: chunked"])
        await client.send_all(chunked + b"0\r\nx: %b\r\n\r\n" % (b"a" * 2**13))
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")


LENGTHS = {
    "no number": (b"abc", b""),
    "no digits": (b"", b""),
    "a sign": (b"+1", b"a"),
    "too many digits": (b"1" * 5000, b"a"),
    "less": (b"5", b"a"),
    "nothing": (b"5", b""),
    "more": (b"1", b"ab"),
    "more than nothing": (b"0", b"a"),
}


def posted(client, path, *headers):
    stream_id = client.connection.get_next_available_stream_id()
    head = head_of(HTTP2, {b":method": b"POST", b":path": path}, headers)
    client.connection.send_headers(stream_id, head)
    return stream_id


@pytest.mark.parametrize(("length", "body"), LENGTHS.values(), ids=LENGTHS)
async def test_a_wrong_content_length_ends_its_stream_alone(length, body):
    async with http2() as client:
        stream_id = posted(client, b"/", (b"content-length", length))
        client.connection.send_data(stream_id, body, end_stream=True)
        await client.flush()
        event = await client.wait_for(h2.events.ResponseReceived, stream_id)
        assert dict(event.headers)[b":status"] == b"400"
        assert await status_of(client, head_of(HTTP2)) == 200


async def test_two_lengths_end_their_stream_alone():
    twice = [(b"content-length", b"1"), (b"content-length", b"2")]
    assert await refused_beside_others(head_of(HTTP2, more=twice)) == 400


async def test_a_length_without_a_body_ends_its_stream_alone():
    headers = head_of(HTTP2, {b":method": b"POST"}, [(b"content-length", b"3")])
    assert await refused_beside_others(headers) == 400


async def test_a_right_length_is_passed_on():
    async with http2() as client:
        stream_id = posted(client, b"/", (b"content-length", b"4"))
        client.connection.send_data(stream_id, b"sent", end_stream=True)
        await client.flush()
        assert (await client.wait_for(h2.events.DataReceived, stream_id)).data == b"sent"


async def test_a_wrong_length_after_a_part_of_the_response_resets_its_stream(echo):
    async with http2(echo) as client:
        stream_id = posted(client, b"/begin", (b"content-length", b"4"))
        await client.flush()
        await client.wait_for(h2.events.DataReceived, stream_id)
        client.connection.send_data(stream_id, b"sent too much", end_stream=True)
        await client.flush()
        event = await client.wait_for(h2.events.StreamReset, stream_id)
        assert event.error_code == h2.errors.ErrorCodes.PROTOCOL_ERROR
        echo.release.set()  # it does not ask whether its client is there
        assert await status_of(client, head_of(HTTP2)) == 200


async def test_trailers_that_do_not_end_their_stream_end_their_connection_alone():
    """Since h2 can't end the stream alone."""
    async with live(EchoApp()) as server:
        async with await server.connect() as stream:
            client = Http2Client(stream)
            stream_id = posted(client, b"/")
            head = client.connection.encoder.encode([(b"x", b"a")])
            frame = len(head).to_bytes(3) + b"\x01\x04" + stream_id.to_bytes(4) + head
            await client.flush()
            await stream.send_all(frame)
            event = await client.wait_for(h2.events.ConnectionTerminated)
            assert event.error_code == h2.errors.ErrorCodes.PROTOCOL_ERROR
        assert await server.answers()
