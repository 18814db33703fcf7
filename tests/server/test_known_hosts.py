"""The host that a connection has been allowed is not looked up again; all others are."""

from __future__ import annotations

import pytest
from server_in_memory import serving

from shoal.asgi.guard import RequestGuard
from shoal.asgi.http_options import HttpOptions
from shoal.testing import settle

pytestmark = pytest.mark.anyio


async def app(scope, receive, send):
    length = (b"content-length", b"0")
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize(
    ("heads", "statuses"),
    [
        (["1.1|Host: localhost", "1.1|Host: localhost"], [200, 200]),
        (["1.1|Host: localhost", "1.1|Host: evil.test"], [200, 421]),
        (["1.1|Host: localhost", "1.1|Host: localhost|Origin: http://evil.test"], [200, 403]),
        (["1.1|Host: evil.test"], [421]),
        # An empty host is none of those allowed, and neither is none at all.
        (["1.1|Host:"], [421]),
        (["1.0"], [421]),
    ],
)
async def test_each_host_of_a_connection_must_be_allowed(heads, statuses):
    async with serving(app) as server:
        server.shared.guard = RequestGuard(HttpOptions(), ("127.0.0.1", 80))
        client = server.connect()
        for head in heads:
            version, *fields = head.split("|")
            lines = [f"POST / HTTP/{version}", *fields, "", ""]
            client.say("\r\n".join(lines).encode())
            await settle()
        assert client.statuses == statuses


async def test_a_host_that_is_known_is_not_checked_again():
    checked = []

    class Guard:
        def check(self, method, host, origin):
            checked.append((method, host, origin))

    async with serving(app) as server:
        server.shared.guard = Guard()
        client = server.connect()
        for fields in ("Host: a", "Host: a", "Host: b", "Host: b\r\nOrigin: c", "Host: b"):
            client.say(f"GET / HTTP/1.1\r\n{fields}\r\n\r\n".encode())
            await settle()
    assert checked == [("GET", b"a", None), ("GET", b"b", None), ("GET", b"b", b"c")]
