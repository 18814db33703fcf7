"""Each way out of an application ends its answer, and its headers are checked, on each protocol."""

from contextlib import asynccontextmanager

import h2.events
import pytest
from live_server import Http2Client, live, read_until, request, upgrade

pytestmark = pytest.mark.real_time

HTTP1, HTTP2 = "http1", "http2"
PROTOCOLS = [HTTP1, HTTP2]
WEBSOCKET = [
    (b":method", b"CONNECT"),
    (b":protocol", b"websocket"),
    (b":path", b"/"),
    (b":scheme", b"http"),
    (b":authority", b"shoal.test"),
    (b"sec-websocket-version", b"13"),
]


def start(length=None, headers=()):
    headers = list(headers)
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    return {"type": "http.response.start", "status": 200, "headers": headers}


def part(body, *, more=False):
    return {"type": "http.response.body", "body": body, "more_body": more}


class App:
    """Sends messages, then returns or raises."""

    def __init__(self, messages, *, fails=False, catches=False):
        self.messages = messages
        self.fails = fails
        self.catches = catches

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            raise RuntimeError  # it has none
        await receive()
        for message in self.messages:
            if message["type"].startswith("http") == (scope["type"] == "http"):
                try:
                    await send(message)
                except RuntimeError:
                    if not self.catches:
                        raise
        if self.fails:
            raise ValueError("the application's own mistake")


@asynccontextmanager
async def http2(app, **options):
    async with live(app, **options) as server, await server.connect() as stream:
        client = Http2Client(stream)
        await client.flush()
        yield client


async def end_of(client, stream_id):
    """The events of a stream until its end, and the last of them."""
    await client.flush()
    found = []
    while True:
        data = await client.stream.receive_some()
        assert data, f"closed after {found}"
        events = client.connection.receive_data(data)
        found += [event for event in events if getattr(event, "stream_id", None) == stream_id]
        for event in found:
            if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                return found, event


def status_of(events):
    headers = [dict(one.headers) for one in events if isinstance(one, h2.events.ResponseReceived)]
    return headers[0][b":status"] if headers else None


def open_websocket(client):
    stream_id = client.connection.get_next_available_stream_id()
    client.connection.send_headers(stream_id, WEBSOCKET)
    return stream_id


async def status_over(protocol, app, *, websocket=False):
    """The status of a response, which has no header ``x-a``."""
    if protocol is HTTP1:
        async with live(app) as server:
            answer = await server.talk(upgrade() if websocket else request("/", close=True))
        assert b"x-a" not in answer
        return int(answer.split()[1])
    async with http2(app) as client:
        stream_id = open_websocket(client) if websocket else client.ask()
        events, _ = await end_of(client, stream_id)
        return int(status_of(events))


CUT_OFF = {
    "returns after a start and a part": App([start(), part(b"begun", more=True)]),
    "returns after a part of a known length": App([start(9), part(b"begun", more=True)]),
    "raises after a part": App([start(), part(b"begun", more=True)], fails=True),
    "sends less than its length": App([start(9), part(b"a", more=True), part(b"b")]),
    "sends more than its length": App([start(1), part(b"a", more=True), part(b"b")]),
    "goes on after too much": App([start(1), part(b"a", more=True), part(b"b")], catches=True),
}


@pytest.mark.parametrize("app", CUT_OFF.values(), ids=CUT_OFF)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_that_is_cut_off_is_not_taken_for_a_whole_one(app, protocol):
    if protocol is HTTP1:
        async with live(app) as server:
            assert (await server.talk(request("/"))).endswith(b"<reset>")
        return
    async with http2(app) as client:
        _, end = await end_of(client, client.ask())
        assert isinstance(end, h2.events.StreamReset)
        assert end.error_code == h2.errors.ErrorCodes.INTERNAL_ERROR


@pytest.mark.parametrize("fails", [False, True])
async def test_a_start_alone_ends_its_stream(fails):
    async with http2(App([start()], fails=fails)) as client:
        _, end = await end_of(client, client.ask())
        assert isinstance(end, h2.events.StreamReset)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_cut_off_answers_of_workers_end_as_well(protocol):
    app = App([start(), part(b"begun", more=True)])
    async with live(app, workers=1) as server, await server.connect() as stream:
        if protocol is HTTP1:
            assert (await server.talk(request("/"))).endswith(b"<reset>")
        else:
            client = Http2Client(stream)
            _, end = await end_of(client, client.ask())
            assert isinstance(end, h2.events.StreamReset)


async def test_more_answers_are_cut_off_than_a_connection_has_streams():
    app = App([start(), part(b"begun", more=True)])
    async with http2(app) as client:
        for _ in range(120):
            await end_of(client, client.ask())


@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
async def test_an_answer_without_a_body_may_have_a_length(method):
    app = App([start(5), part(b"hello")])
    async with http2(app) as client:
        events, end = await end_of(client, client.ask(method=method))
        assert (status_of(events), type(end)) == (b"200", h2.events.StreamEnded)


@pytest.mark.parametrize("status", [99, 100, 101, 199, 1000])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_status_that_no_answer_has_is_an_error_of_the_server(status, protocol):
    app = App([{**start(2), "status": status}, part(b"ab")])
    assert await status_over(protocol, app) == 500


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_content_has_no_length_on_http2(status):
    async with http2(App([{**start(2), "status": status}, part(b"ab")])) as client:
        events, end = await end_of(client, client.ask())
        assert (status_of(events), type(end)) == (b"%d" % status, h2.events.StreamEnded)


ACCEPT = {"type": "websocket.accept"}


def refusal(*headers):
    return {"type": "websocket.http.response.start", "status": 403, "headers": headers}


def refused(body, *, more=False):
    return {**part(body, more=more), "type": "websocket.http.response.body"}


WAYS = {
    "accepts and returns": App([ACCEPT]),
    "accepts and raises": App([ACCEPT], fails=True),
    "sends and returns": App([ACCEPT, {"type": "websocket.send", "text": "a"}]),
    "closes": App([ACCEPT, {"type": "websocket.close", "code": 3000}]),
    "returns at once": App([]),
    "raises at once": App([], fails=True),
    "closes at once": App([{"type": "websocket.close"}]),
    "begins to refuse": App([refusal()]),
    "refuses in part": App([refusal(), refused(b"a", more=True)]),
    "refuses with too little": App([refusal((b"content-length", b"5")), refused(b"a")]),
}


@pytest.mark.parametrize("app", WAYS.values(), ids=WAYS)
async def test_each_end_of_a_websocket_ends_its_stream(app):
    async with http2(app) as client:
        for _ in range(2):
            await end_of(client, open_websocket(client))


@pytest.mark.parametrize("app", WAYS.values(), ids=WAYS)
async def test_each_end_of_a_websocket_ends_its_connection(app):
    async with live(app) as server:
        assert await server.talk(upgrade())


async def test_the_closing_frame_of_a_websocket_comes_before_the_end_of_its_stream():
    async with http2(App([ACCEPT], fails=True)) as client:
        events, end = await end_of(client, open_websocket(client))
        data = b"".join(one.data for one in events if isinstance(one, h2.events.DataReceived))
        assert (data, type(end)) == (b"\x88\x02\x03\xf3", h2.events.StreamEnded)


BAD_VALUES = [b"a\x1bb", b"a\x0bb", b"a\x7fb", b"a\0b", b"a\r\nb: c", b"a\nb", b"\x08"]


@pytest.mark.parametrize("value", BAD_VALUES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_control_character_in_a_header_is_not_sent(value, protocol):
    headers = [(b"x-a", value)]
    app = App([start(headers=headers), part(b""), {**ACCEPT, "headers": headers}])
    assert await status_over(protocol, app) == 500
    assert await status_over(protocol, app, websocket=True) == 500


@pytest.mark.parametrize("value", [b"a\x1bb", b"a\r\nb: c"])
@pytest.mark.parametrize(
    "messages",
    [
        lambda value: [{"type": "http.response.early_hint", "links": [value]}],
        lambda value: [{"type": "http.response.push", "path": "/", "headers": [(b"a", value)]}],
        lambda value: [
            {**start(), "trailers": True},
            part(b"ab"),
            {"type": "http.response.trailers", "headers": [(b"a", value)]},
        ],
    ],
    ids=["early hints", "a push", "trailers"],
)
async def test_a_control_character_is_not_sent_in_what_http2_has_besides(messages, value):
    async with http2(App(messages(value))) as client:
        events, _ = await end_of(client, client.ask())
        headers = [pair for one in events for pair in getattr(one, "headers", None) or ()]
        assert not any(value in each for pair in headers for each in pair)


FRAMING = [
    (b"Transfer-Encoding", b"chunked"),
    (b"Connection", b"x"),
    (b"Upgrade", b"other"),
    (b"Keep-Alive", b"timeout=5"),
    (b"Proxy-Connection", b"close"),
]


async def test_an_application_does_not_decide_on_the_framing():
    app = App([start(2, FRAMING), part(b"ab"), {**ACCEPT, "headers": [*FRAMING, (b"x-a", b"b")]}])
    async with live(app) as server:
        answer = (await server.talk(request("/", close=True))).lower()
        assert b"transfer-encoding" not in answer
        assert b"keep-alive" not in answer
        assert b"proxy-connection" not in answer
        assert b"upgrade" not in answer
        assert answer.count(b"connection:") == 1
        answer = (await server.talk(upgrade())).lower()
        assert b"transfer-encoding" not in answer
        assert b"x-a: b" in answer
        assert answer.count(b"\r\nconnection:") == answer.count(b"\r\nupgrade:") == 1
    async with http2(app) as client:
        events, _ = await end_of(client, client.ask())
        assert status_of(events) == b"200"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("value", ["close", "keep-alive, close", "upgrade"])
async def test_proxy_connection_means_nothing(value, together):
    asked = [request(f"/{n}", headers=[f"Proxy-Connection: {value}"]) for n in range(3)]
    async with live(App([start(2), part(b"ab")])) as server, await server.connect() as client:
        if together:
            await client.send_all(b"".join(asked))
            received = b""
            while received.count(b"\r\n\r\nab") < 3:
                received += await read_until(client, b"ab")
        else:
            for one in asked:
                await client.send_all(one)
                assert (await read_until(client, b"ab")).startswith(b"HTTP/1.1 200 ")
