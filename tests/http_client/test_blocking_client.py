"""The client for code without an event loop: the same calls, which block a thread."""

import functools
import gc
import itertools
import os
import threading
from contextlib import suppress

import anyio
import pytest
from servers import Held, Steps, app_with, served, three

from handlers import double
from shoal import errors
from shoal.http_client import HttpClient, SyncHttpClient

pytestmark = pytest.mark.real_time

FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


async def in_a_thread(function, *args):
    return await anyio.to_thread.run_sync(functools.partial(function, *args))


async def test_calls_and_streams_block():
    def use(url):
        with SyncHttpClient(url) as client:
            assert client.url == url
            assert client.call("/doubled", 4) == 8
            assert client.map("/doubled", iter([1, 2]), timeout_s=9) == [2, 4]
            results = client.map("/doubled", itertools.count(), window=8)
            assert list(itertools.islice(results, 20)) == list(range(0, 40, 2))
            results.close()
            with client.stream("/three", 1) as stream:
                assert list(stream) == [0, 1, 2]
            with pytest.raises(RuntimeError, match=r"with client\.stream"):
                next(client.stream("/three", 1))
            with pytest.raises(errors.HttpProblem):
                client.call("/none", 1)
            with pytest.raises(errors.DeadlineExceeded):
                client.call("/held", 1, timeout_s=0.05)
        client.close()
        with pytest.raises(errors.ShutDown, match="closed"):
            client.call("/doubled", 4)

    async with served(app_with(doubled=double, three=three, held=Held())) as url:
        await in_a_thread(use, url)


async def test_a_stream_that_is_left_is_left_at_the_server():
    steps = Steps()

    def use(url):
        with SyncHttpClient(url) as client:
            with client.stream("/steps", 2) as stream:
                assert next(stream) == 3
            anyio.from_thread.run(steps.ended.wait)

    async with served(app_with(steps=steps)) as url:
        await in_a_thread(use, url)


async def test_a_handler_that_blocks_is_cancelled_with_its_request():
    held = Held()
    async with served(app_with(held=held)) as inner_url:
        inner = SyncHttpClient(inner_url)

        def outer(items: list[int]) -> list[int]:
            return [inner.call("/held", 1)]

        async with served(app_with(outer=outer)) as url, HttpClient(url) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call, "/outer", 1)
                await held.began.wait()
                tasks.cancel_scope.cancel()
            await held.cancelled.wait()
        await in_a_thread(inner.close)


@FORKS
async def test_a_fork_leaves_the_streams_of_its_parent_alone():
    has_forked = anyio.Event()

    async def steps(items: list[int]):
        yield items
        await has_forked.wait()
        yield items

    async with served(app_with(steps=steps)) as url, HttpClient(url) as client:
        stream = await client.stream("/steps", 2).__aenter__()
        assert await anext(stream) == 2
        if (child := os.fork()) == 0:
            with suppress(BaseException):
                del stream
                gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)  # noqa: ASYNC222 (it waits for no task)
        has_forked.set()
        async with stream:
            assert await anext(stream) == 2


@FORKS
async def test_a_fork_can_not_use_the_client_of_its_parent():
    def use(url):
        with SyncHttpClient(url) as client:
            assert client.call("/doubled", 1) == 2
            if (child := os.fork()) == 0:
                with suppress(BaseException):
                    with pytest.raises(errors.ShutDown, match="a fork"):
                        client.call("/doubled", 2)
                    client.close()
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0) == (child, 0)
            assert client.call("/doubled", 3) == 6

    async with served(app_with(doubled=double)) as url:
        await in_a_thread(use, url)


async def test_several_threads_may_use_one():
    async with served(app_with(doubled=double)) as url:
        client = SyncHttpClient(url)
        results = {}

        async def call(number):
            results[number] = await in_a_thread(client.call, "/doubled", number)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(call, number)
        assert results == {number: 2 * number for number in range(8)}
        await in_a_thread(client.close)


async def test_an_event_loop_must_not_block():
    client = SyncHttpClient("http://x")
    with pytest.raises(RuntimeError, match=r"await client\.call"):
        client.call("/x", 1)
    with pytest.raises(RuntimeError, match=r"async with client\.stream"):
        client.stream("/x", 1).__enter__()
    client.close()


def test_its_options_are_those_of_the_other():
    with pytest.raises(TypeError, match="timeout"):
        SyncHttpClient("http://x", timeout=5)
    with pytest.raises(ValueError, match="timeout_s"):
        SyncHttpClient("http://x", timeout_s=-1)
    before = set(threading.enumerate())
    with SyncHttpClient("http://127.0.0.1:1", max_attempts=2) as client:
        with pytest.raises(ConnectionRefusedError):
            client.call("/x", 1)
        begun = set(threading.enumerate()) - before
        [thread] = [one for one in begun if one.name == "shoal-http-client"]
        assert thread.daemon
    assert not thread.is_alive()
