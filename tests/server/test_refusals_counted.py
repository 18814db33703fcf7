"""Each request that is answered is counted once and logged once, whoever has answered it."""

import json
from collections import Counter

import anyio
import h2.events
import pytest
from live_server import Http2Client, counted, http2, live, read_until, request, upgrade

from handlers import app_of, double
from shoal.server.shared import Shared
from worker_processes import until

pytestmark = pytest.mark.real_time

OPTIONS = {
    "allowed_hosts": ["shoal.test"],
    "allowed_origins": ["https://shoal.test"],
    "access_log": True,
}


@pytest.fixture(
    params=[
        pytest.param(None, id="alone"),
        pytest.param(1, id="workers", marks=pytest.mark.one_loop),
    ]
)
def workers(request):
    return request.param


@pytest.fixture
def app():
    return app_of(double, "/double", name="double")


async def counted_once(app, endpoint="-", protocol="other", outcome="invalid"):
    await until(lambda: counted(app))  # a worker tells it
    assert counted(app) == {(endpoint, protocol, outcome): 1.0}


def shown(line):
    return tuple(line[name] for name in ("protocol", "method", "path", "status"))


ELSEWHERE = b"GET /double HTTP/1.1\r\nHost: evil.test\r\n\r\n"
POST = b"POST /double HTTP/1.1\r\nHost: shoal.test\r\n"
GET = "HTTP/1.1", "GET", "/double"
UNREAD = "HTTP/1.1", None, None

NEVER_THERE = [
    (ELSEWHERE, (*GET, 421)),
    (ELSEWHERE.replace(b"1.1", b"1.0"), ("HTTP/1.0", "GET", "/double", 421)),
    (POST + b"Origin: https://evil.test\r\n\r\n", ("HTTP/1.1", "POST", "/double", 403)),
    (upgrade("Origin: https://evil.test"), ("HTTP/1.1", "GET", "/", 403)),
    (b"nonsense\r\n\r\n", (*UNREAD, 400)),
    (b"GET /double HTTP/3.0\r\n\r\n", (*UNREAD, 400)),
    (b"GET /double HTTP/1.1\r\n\r\n", (*GET, 400)),
    (b"GET /double HTTP/1.1\nHost: shoal.test\n\n", (*UNREAD, 400)),
    (b"get /double HTTP/1.1\r\nHost: shoal.test\r\n\r\n", (*UNREAD, 501)),
    (b"GET /double HTTP/1.1\r\n" + b"X: " + 40000 * b"x" + b"\r\n\r\n", (*UNREAD, 431)),
    (b"GET /" + 40000 * b"x", (*UNREAD, 414)),
    (b"GET /double HTTP/1.1\r\nHost: shoal.test\r\n" + 200 * b"a: b\r\n" + b"\r\n", (*GET, 431)),
    (b"GET /double HTTP/1.1\r\nHost: shoal.test\r\nbad header\r\n\r\n", (*GET, 400)),
    (upgrade().replace(b"Version: 13", b"Version: 12"), ("WebSocket", "GET", "/", 400)),
    (request("/nowhere", close=True), ("HTTP/1.1", "GET", "/nowhere", 404)),
    (request("/double", method="PATCH", close=True), ("HTTP/1.1", "PATCH", "/double", 405)),
    (request("/double", method="BREW", close=True), ("HTTP/1.1", "BREW", "/double", 501)),
]


async def test_what_never_reaches_an_endpoint_is_counted_once(app, logged, workers):
    answers, counts = [], Counter()
    async with live(app, workers=workers, **OPTIONS) as server:
        for sent, expected in NEVER_THERE:
            answers.append(await server.talk(sent))
            assert answers[-1].startswith(b"HTTP/1.1 %d " % expected[-1]), sent
            counts["-", "other", "failed" if expected[-1] == 501 else "invalid"] += 1
            await until(lambda: sum(counted(app).values()) >= counts.total())  # a worker tells it
            assert counted(app) == counts, sent
        async with await server.connect() as client:
            await client.send_all(request("/nowhere"))
            await read_until(client, b"not-found")
            await client.send_all(b"GET / HTTP/1.1\r\nX: " + 40000 * b"x")
            await read_until(client, b" 431 ")
        counts["-", "other", "invalid"] += 2
        await until(lambda: sum(counted(app).values()) >= counts.total())
    assert counted(app) == counts
    *lines, before, unread = logged()
    assert shown(before) == ("HTTP/1.1", "GET", "/nowhere", 404)
    assert shown(unread) == (*UNREAD, 431), "it was taken for the one before"
    assert [shown(line) for line in lines] == [expected for _, expected in NEVER_THERE]
    for line, answer in zip(lines, answers, strict=True):
        assert line["client"].startswith("127.0.0.1:")
        assert line["bytes"] == len(answer.partition(b"\r\n\r\n")[2])


async def test_what_is_wrong_or_late_is_no_client_that_left(app, logged, workers):
    limits = {"head_timeout_s": 0.2, "body_timeout_s": 0.2}
    headers = POST + b"Content-Type: application/json\r\n"
    sent = [
        (b"GET / HT", (*UNREAD, 408), ("-", "other", "timeout")),
        *(
            (headers + body, ("HTTP/1.1", "POST", "/double", status), ("double", "json", outcome))
            for body, status, outcome in (
                (b"Content-Length: 5\r\n\r\n1", 408, "timeout"),
                (b"Transfer-Encoding: chunked\r\n\r\nz\r\n", 400, "invalid"),
                (b"Transfer-Encoding: chunked\r\n\r\n1\r\n", 408, "timeout"),
            )
        ),
    ]
    answers, counts = [], Counter()

    async def check_counts(count):
        counts[count] += 1
        await until(lambda: sum(counted(app).values()) >= counts.total())  # a worker tells it
        assert counted(app) == counts

    async with live(app, workers=workers, **OPTIONS, **limits) as server:
        for data, expected, count in sent:
            answers.append(await server.talk(data))
            assert answers[-1].startswith(b"HTTP/1.1 %d " % expected[-1]), data
            await check_counts(count)
        async with http2(server) as client:
            stream = client.ask(b"/double", method=b"POST", end=False)
            await client.flush()
            await client.wait_for(h2.events.StreamEnded, stream)
            await check_counts(("double", "json", "timeout"))
    assert counted(app) == counts
    *lines, over_http2 = logged()
    assert shown(over_http2) == ("HTTP/2", "POST", "/double", 408)
    assert [shown(line) for line in lines] == [expected for _, expected, _ in sent]
    assert lines[0]["duration_s"] >= 0.2
    for line, answer in zip(lines[1:], answers[1:], strict=True):
        assert line["bytes"] == len(answer.partition(b"\r\n\r\n")[2])


async def test_what_is_refused_over_http2_is_counted(app, logged, workers):
    async with (
        live(app, workers=workers, **{**OPTIONS, "allowed_hosts": ["other.test"]}) as server,
        http2(server) as client,
    ):
        stream = client.ask(b"/double")
        await client.flush()
        data = (await client.wait_for(h2.events.DataReceived, stream)).data
        await counted_once(app)
    [line] = logged()
    assert shown(line) == ("HTTP/2", "GET", "/double", 421)
    assert line["bytes"] == len(data)
    assert json.loads(data)["title"] == "Misdirected Request"


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("http2", [False, True])
async def test_an_application_without_an_answer_is_logged_as_answered_for(logged, http2, raises):
    async def failing(scope, receive, send):
        if scope["type"] == "http" and raises:
            raise ValueError

    async with live(failing, access_log=True) as server:
        if http2:
            client = Http2Client(await server.connect())
            await client.fetch(b"/x")
            await client.stream.aclose()
        else:
            assert (await server.talk(request("/x"))).startswith(b"HTTP/1.1 500 ")
    [line] = logged()
    assert line["status"] == 500


async def test_an_application_that_fails_as_its_client_has_left_was_not_answered_for(logged):
    began, left = anyio.Event(), anyio.Event()

    async def failing(scope, receive, send):
        if scope["type"] == "http":
            began.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()
            raise ValueError

    async with live(failing, access_log=True) as server, http2(server) as client:
        client.ask(b"/x")
        await client.flush()
        await began.wait()
        await client.stream.aclose()
        await left.wait()
    [line] = logged()
    assert line["status"] is None


async def test_a_client_behind_a_proxy_is_named(app, logged, workers):
    trusted = {"trusted_peers": ["127.0.0.1"], "proxy_headers": ["x-forwarded-for"]}
    async with live(app, workers=workers, **OPTIONS, **trusted) as server:
        await server.talk(ELSEWHERE[:-2] + b"X-Forwarded-For: 203.0.113.7\r\n\r\n")
    [line] = logged()
    assert line["client"].startswith("203.0.113.7")


async def test_a_request_that_the_end_of_the_server_refuses_is_counted(app, logged, monkeypatch):
    monkeypatch.setattr(Shared, "last_words_s", 5.0)
    began = anyio.Event()

    @app.endpoint("/held", name="held")
    async def held(items: list[int]) -> list[int]:
        began.set()
        await anyio.sleep_forever()
        return items

    async with live(app, graceful_timeout_s=0.1, access_log=True) as server:
        async with await server.connect() as client:
            await client.send_all(request("/held", method="POST", body=b"1"))
            await began.wait()
            server.stop.set()
            await read_until(client, b" 503 ")
        await counted_once(app, "held", "json", "unavailable")
    [line] = logged()
    assert shown(line) == ("HTTP/1.1", "POST", "/held", 503)


async def test_names_of_clients_are_no_labels(app):
    async with live(app) as server:
        for nth in range(5):
            await server.talk(request(f"/nowhere/{nth}", method=f"M{nth}", close=True))
            await server.talk(b"M%d nonsense\r\n\r\n" % nth)
    assert set(counted(app)) <= {("-", "other", "invalid"), ("-", "other", "failed")}
