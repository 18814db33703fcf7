"""Calls by a transport of httpx that speaks HTTP/2, whose connection is shared by all calls."""

import httpx
import pytest
from servers import served
from simple_app import Steps, app_with, three

from shoal.http_client import HttpClient

pytestmark = pytest.mark.real_time


def over_http2():
    return httpx.AsyncClient(http1=False, http2=True)


@pytest.mark.parametrize("read", [0, 1, 3])
async def test_a_stream_is_left_at_once_and_the_connection_stays(read):
    async with (
        served(app_with(three=three), keep_alive_timeout_s=60) as url,
        HttpClient(url, client=over_http2()) as client,
    ):
        for _ in range(2):
            async with client.stream("/three", 1) as stream:
                found = [await anext(stream) for _ in range(read)]
                if read == 3:
                    assert [item async for item in stream] == []
            assert found == list(range(read))


async def test_a_stream_that_is_left_ends_with_the_client():
    steps = Steps()
    async with served(app_with(steps=steps), keep_alive_timeout_s=60) as url:
        async with HttpClient(url, client=over_http2()) as client:
            async with client.stream("/steps", 1) as stream:
                assert await anext(stream) == 2
            assert not steps.ended.is_set()
        await steps.ended.wait()
