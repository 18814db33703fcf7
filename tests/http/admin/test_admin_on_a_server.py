"""The admin API on a real server: a verb that is cancelled is cancelled there as well."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from serving.fake_client import FakeClient, full_status
from shoal.asgi.http_options import HttpOptions
from shoal.http.admin.api import AdminApi
from shoal.http.admin.mount import AdminListener
from shoal.server.server import serve
from shoal.serving.clients.remote_client import RemoteClient

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

HANG_S = 10


@pytest.fixture
def fake():
    fake = FakeClient()
    fake.endpoints["e"] = {}
    return fake


@asynccontextmanager
async def operating(fake, tmp_path):
    """A client of a real server whose admin API drives a fake client."""
    admin = AdminListener(AdminApi(fake, token=None, allowed_modules=None))
    stop = anyio.Event()

    async def run(*, task_status):
        config = HttpOptions(uds=str(tmp_path / "x"))
        await serve(admin, config, shutdown=stop.wait, started=task_status.started, lifespan=False)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            async with RemoteClient(await tasks.start(run)) as client:
                yield client
            stop.set()


async def test_a_verb_is_answered(fake, tmp_path):
    async with operating(fake, tmp_path) as client:
        assert await client.status() == full_status()


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(fake, tmp_path):
    began, ended = anyio.Event(), anyio.Event()

    async def answer():
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    fake.answer = answer
    async with operating(fake, tmp_path) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon((await client.get_handle("e")).call)
            await began.wait()
            tasks.cancel_scope.cancel()
        await ended.wait()


async def test_a_stream_that_is_left_is_left_at_the_server(fake, tmp_path):
    fake.results = [1]
    async with operating(fake, tmp_path) as client:
        handle = await client.get_handle("e")
        async with handle.stream() as stream:
            assert await anext(stream) == 1
        await fake.streams[0].closed.wait()
