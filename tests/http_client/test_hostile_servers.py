"""Servers that do not answer, or answer with what may do harm."""

from __future__ import annotations

import anyio
import httpx
import pytest
from raw_server import raw_server

from shoal import errors
from shoal.http_client import HttpClient

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def test_calls_that_wait_for_a_connection_end_with_the_client():
    received, ended = [], []
    is_received = anyio.Event()

    async def silent(stream):
        received.append(await stream.receive())
        is_received.set()
        await anyio.sleep_forever()

    of_one = httpx.AsyncClient(limits=httpx.Limits(max_connections=1))
    async with raw_server(silent) as url, anyio.create_task_group() as tasks:
        client = HttpClient(url, client=of_one, timeout_s=None)

        async def call():
            with pytest.raises(errors.ShutDown, match="closed") as caught:
                await client.call("/x")
            ended.append(caught.value)

        for _ in range(3):
            tasks.start_soon(call)
        await is_received.wait()
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
    assert (len(ended), len(received)) == (3, 1)
