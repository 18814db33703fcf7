"""Requests are counted under the endpoint that they call, the first one and those after it."""

from __future__ import annotations

import pytest
from live_server import counted, live, read_until, request

import shoal

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def echo(texts: list[str]) -> list[str]:
    return texts


@pytest.mark.parametrize(
    ("protocol", "path", "body"),
    [
        ("json", "/double", b"1"),
        ("openai", "/v1/completions", b'{"model": "echo", "prompt": "a"}'),
    ],
    ids=["the path names the endpoint", "the body does"],
)
async def test_all_requests_are_counted_under_their_endpoint(protocol, path, body):
    app = shoal.App(protocols=["openai"])
    app.endpoint("/double", name="double")(double)
    app.endpoint("/echo", name="echo")(echo)
    sent = request(path, method="POST", body=body)
    async with live(app) as server, await server.connect() as client:
        for _ in range(3):  # the first one is counted in another way than those after it
            await client.send_all(sent)
            await read_until(client, b"200 OK")
    endpoint = "double" if protocol == "json" else "echo"
    assert counted(app) == {(endpoint, protocol, "ok"): 3.0}
