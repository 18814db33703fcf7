"""The admin API without a token is not for those whom a proxy of this machine lets in."""

from __future__ import annotations

import pytest

from serving.fake_client import FakeClient
from shoal.http.admin.api import AdminApi
from shoal.http.admin.mount import AdminListener
from shoal.testing.asgi import ask

pytestmark = pytest.mark.anyio

LOCAL = ("host", "localhost")
PROXIES_ADD = [
    ("forwarded", "for=192.0.2.1"),
    ("x-forwarded-for", "192.0.2.1"),
    ("x-forwarded-host", "shoal.test"),
    ("x-real-ip", "192.0.2.1"),
    ("via", "1.1 proxy"),
]
added = pytest.mark.parametrize("header", PROXIES_ADD, ids=lambda header: header[0])


async def status_asked(token, *headers):
    client = FakeClient()
    app = AdminListener(AdminApi(client, token=token, allowed_modules=None))
    answer = await ask(app, "/-/api/status", method="GET", headers=(LOCAL, *headers))
    return answer.status, answer.json().get("type"), bool(client.asked)


@added
async def test_what_a_proxy_passes_on_is_refused(header):
    refused = (403, "urn:shoal:problem:forwarded", False)
    assert await status_asked(None, header) == refused
    assert await status_asked(None, (header[0], "")) == refused


async def test_what_comes_directly_is_answered():
    assert (await status_asked(None))[0] == 200


@added
async def test_with_the_token_a_proxy_may_pass_it_on(header):
    assert (await status_asked("secret", header, ("authorization", "Bearer secret")))[0] == 200
