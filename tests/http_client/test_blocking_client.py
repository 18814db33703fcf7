"""The client for code without an event loop: the same calls, which block a thread."""

from __future__ import annotations

import functools
import gc
import os
import threading
from contextlib import suppress

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from served import served
from simple_app import Held, Steps, app_of, headers_of

import shoal
from shoal import errors
from shoal.http_client import RetryOptions, connect, connect_sync

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def three(items: list[int]):
    for number in range(3):
        yield [number]


def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def in_a_thread(function, *args):
    return await anyio.to_thread.run_sync(functools.partial(function, *args))


async def test_calls_and_streams_block():
    def use(url):
        with connect_sync(url) as client:
            assert client.url == url
            assert client.call("/doubled", 4) == 8
            assert client.map("/doubled", iter(range(5))) == [0, 2, 4, 6, 8]
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

    async with served(app_of(doubled=doubled, three=three, held=Held())) as url:
        await in_a_thread(use, url)


async def test_a_stream_that_is_left_is_left_at_the_server():
    steps = Steps()

    def use(url):
        with connect_sync(url) as client:
            with client.stream("/steps", 2) as stream:
                assert next(stream) == 3
            anyio.from_thread.run(steps.ended.wait)

    async with served(app_of(steps=steps)) as url:
        await in_a_thread(use, url)


async def test_calls_and_streams_block_on_a_websocket():
    def use(url):
        with connect_sync(url) as client:
            with client.websocket("/doubled", headers={"x-a": "1"}) as socket:
                assert socket.call(4) == 8
                assert socket.call(5, timeout_s=30, priority=1) == 10
                with (
                    pytest.raises(TypeError, match=r"socket\.stream"),
                    client.websocket("/three") as other,
                ):
                    other.call(1)
            with client.websocket("/three") as socket:
                with socket.stream(1) as stream:
                    assert list(stream) == [0, 1, 2]
                with pytest.raises(RuntimeError, match=r"with socket\.stream"):
                    next(socket.stream(1))
            with pytest.raises(RuntimeError, match="not open"):
                socket.call(1)
            with pytest.raises(RuntimeError, match="entered once"), socket:
                pass
            with pytest.raises(errors.HttpProblem), client.websocket("/none"):
                pass
            assert client.call("/doubled", 4) == 8

    async with served(app_of(doubled=doubled, three=three)) as url:
        await in_a_thread(use, url)


async def test_calls_of_several_threads_run_at_once_on_one_websocket():
    together = 8
    meeting = anyio.Event()
    came = []

    async def meet(items: list[int]) -> list[int]:
        came.extend(items)
        if len(came) == together:
            meeting.set()
        await meeting.wait()
        return items

    app = shoal.App()
    app.endpoint("/meet", name="meet", max_batch_size=1, max_concurrent_batches=together)(meet)
    async with served(app) as url:
        client = connect_sync(url)
        socket = await in_a_thread(client.websocket("/meet").__enter__)
        results = {}

        async def call(number):
            results[number] = await in_a_thread(socket.call, number)

        async with anyio.create_task_group() as tasks:
            for number in range(together):
                tasks.start_soon(call, number)
        assert results == {number: number for number in range(together)}
        await in_a_thread(socket.__exit__, None, None, None)
        await in_a_thread(client.close)


async def test_a_websocket_ends_with_its_client_and_its_block_ends_nevertheless():
    held = Held()

    async with served(app_of(held=held)) as url:
        client = connect_sync(url)
        failed = []

        def use():
            with client.websocket("/held") as socket:
                try:
                    socket.call(1)
                except Exception as error:
                    failed.append(error)
                with pytest.raises(errors.ShutDown):
                    socket.call(2)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_a_thread, use)
            await held.began.wait()
            await in_a_thread(client.close)
        assert [type(error) for error in failed] in ([ConnectionError], [errors.ShutDown])
        await held.cancelled.wait()


def call_on_a_websocket(client):
    with client.websocket("/held") as socket:
        return socket.call(1)


def call_over_http(client):
    return client.call("/held", 1)


@pytest.mark.parametrize("call", [call_over_http, call_on_a_websocket])
async def test_a_handler_that_blocks_is_cancelled_with_its_request(call):
    held = Held()
    async with served(app_of(held=held)) as inner_url:
        inner = connect_sync(inner_url)

        def outer(items: list[int]) -> list[int]:
            return [call(inner)]

        async with served(app_of(outer=outer)) as url:
            await leave_when(held.began, url)
            await held.cancelled.wait()
        await in_a_thread(inner.close)


async def leave_when(has_begun, url):
    """Makes a call of ``/outer``, and leaves it when its handler waits for what it has called."""
    async with connect(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.call, "/outer", 1)
        await has_begun.wait()
        tasks.cancel_scope.cancel()


async def test_a_websocket_that_is_not_accepted_in_time_is_given_up():
    began, gone = anyio.Event(), anyio.Event()

    async def silent(scope, receive, send):
        await receive()
        began.set()
        while (await receive())["type"] != "websocket.disconnect":
            pass
        gone.set()

    async with served(silent, lifespan=False) as inner_url:
        inner = connect_sync(inner_url)

        def outer(items: list[int]) -> list[int]:
            with inner.websocket("/x"):
                return items

        async with served(app_of(outer=outer)) as url:
            await leave_when(began, url)
            await gone.wait()
        await in_a_thread(inner.close)


@FORKS
async def test_a_fork_leaves_the_streams_of_its_parent_alone():
    has_forked = anyio.Event()

    async def steps(items: list[int]):
        yield items
        await has_forked.wait()
        yield items

    async with served(app_of(steps=steps)) as url, connect(url) as client:
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
        with connect_sync(url) as client:
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

    async with served(app_of(doubled=doubled)) as url:
        await in_a_thread(use, url)


async def test_several_threads_may_use_one():
    async with served(app_of(doubled=doubled)) as url:
        client = connect_sync(url)
        results = {}

        async def call(number):
            results[number] = await in_a_thread(client.call, "/doubled", number)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(call, number)
        assert results == {number: 2 * number for number in range(8)}
        await in_a_thread(client.close)


async def test_an_event_loop_must_not_block():
    client = connect_sync("http://x")
    with pytest.raises(RuntimeError, match=r"await client\.call"):
        client.call("/x", 1)
    with pytest.raises(RuntimeError, match=r"await client\.map"):
        client.map("/x", [1])
    with pytest.raises(RuntimeError, match=r"async with client\.stream"):
        client.stream("/x", 1).__enter__()
    with pytest.raises(RuntimeError, match=r"async with client\.websocket"):
        client.websocket("/x").__enter__()
    client.close()


async def test_a_handler_that_blocks_passes_its_trace_on():
    async with served(app_of(headers=headers_of)) as inner_url:
        inner = connect_sync(inner_url)

        def outer(items: list[int]) -> list[dict]:
            return [inner.call("/headers", {})]

        async with served(app_of(outer=outer)) as url, connect(url) as client:
            headers = await client.call("/outer", 1, headers={"traceparent": TRACE})
            assert headers["traceparent"] == TRACE
        await in_a_thread(inner.close)


def test_its_options_are_those_of_the_other():
    with pytest.raises(TypeError, match="timeout"):
        connect_sync("http://x", timeout=5)
    with pytest.raises(ValueError, match="timeout_s"):
        connect_sync("http://x", timeout_s=-1)
    retries = RetryOptions(attempts=2, first_delay_s=0.001)
    with connect_sync("http://127.0.0.1:1", retries=retries) as client:
        with pytest.raises(ConnectionRefusedError):
            client.call("/x", 1)
        [thread] = [one for one in threading.enumerate() if one.name == "shoal-http-client"]
        assert thread.daemon
    assert not thread.is_alive()
