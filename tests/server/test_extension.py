"""What the server offers an application beyond ASGI, as its extension `shoal.disconnect`."""

import anyio
import pytest
from live_server import Http2Client, live, read_until, request
from server_in_memory import asked, serving

from shoal.testing import settle

OFTEN = {"when_left", "is_cut_off", "refused_with", "send_timeout_s", "is_local"}
START = {"type": "http.response.start", "status": 200, "headers": []}


class Offered:
    """Answers, and keeps what it was offered."""

    def __init__(self):
        self.offered = None

    async def __call__(self, scope, receive, send):
        self.offered = offered = scope["extensions"]["shoal.disconnect"]
        assert offered["send_timeout_s"] == 7
        assert offered["is_local"]
        assert not offered["is_cut_off"]()
        assert offered["refused_with"]() == 0
        assert offered["send"] == send if "send" in offered else scope["http_version"] == "2"
        await send(START)
        await send({"type": "http.response.body", "body": b"answered"})


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("version", "also"), [("1.1", {"heartbeat", "send", "has_room", "put"}), ("2", set())]
)
async def test_it_is_a_mapping(version, also):
    app = Offered()
    async with live(app, send_timeout_s=7) as server, await server.connect() as client:
        if version == "2":
            peer = Http2Client(client)
            peer.ask(b"/")
            await peer.flush()
        else:
            await client.send_all(request("/"))
        await read_until(client, b"answered")
    offered = app.offered
    assert set(offered) == set({**offered}) == OFTEN | also
    assert offered.get("note_trace") is None


@pytest.mark.real_time
async def test_a_server_of_public_hosts_is_not_local():
    offered = []

    async def app(scope, receive, send):
        offered.append(scope["extensions"]["shoal.disconnect"]["is_local"])
        await send(START)
        await send({"type": "http.response.body", "body": b"answered"})

    async with live(app, allowed_hosts=["api.example.com"]) as server:
        assert b"answered" in await server.talk(
            request("/", close=True).replace(b"shoal.test", b"localhost")
        )
    assert offered == [False]


@pytest.mark.real_time
async def test_it_also_has_where_to_note_a_trace_if_there_is_an_access_log():
    noted = anyio.Event()

    async def app(scope, receive, send):
        scope["extensions"]["shoal.disconnect"]["note_trace"](("a" * 32, "b" * 16))
        noted.set()
        await send(START)
        await send({"type": "http.response.body", "body": b"answered"})

    async with live(app, access_log=True) as server, await server.connect() as client:
        await client.send_all(request("/"))
        await read_until(client, b"answered")
    assert noted.is_set()


async def test_nothing_is_put_before_an_answer_has_begun_or_after_its_end():
    async def app(scope, receive, send):
        offered = scope["extensions"]["shoal.disconnect"]
        offered["put"](b"too early")
        await send(START)
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
