"""A worker holds what its client has not read once."""

import re
import sys
from pathlib import Path

import pytest
from live_server import live, read_until, request

import shoal
from worker_processes import workers_of

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read in /proc"),
]

SIZE = 64 * 2**20


def memory_of(pid):
    """The memory of a process, without what it shares, in bytes."""
    return 1024 * int(re.search(r"RssAnon:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@pytest.mark.parametrize(
    "middleware",
    [
        pytest.param((), id="direct"),
        pytest.param((lambda app: app,), id="by ASGI", marks=pytest.mark.one_loop),
    ],
)
async def test_a_large_answer_to_a_client_that_does_not_read_is_held_once(middleware):
    app = shoal.App(middleware=middleware)
    large = bytes(SIZE)

    @app.endpoint("/whole")
    async def whole(items: list[int]) -> list[bytes]:
        return [large for _ in items]

    async with live(app, workers=1, send_timeout_s=20) as server, await server.connect() as client:
        await client.send_all(request("/-/healthz"))
        await read_until(client, b"alive")
        [worker] = workers_of()
        before = memory_of(worker)
        await client.send_all(request("/whole", method="POST", body=b"1"))
        await read_until(client, b"\r\n\r\n")
        # What it takes beside that does not grow with the answer.
        assert memory_of(worker) - before < 1.25 * SIZE
