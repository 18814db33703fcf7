"""Servers on real sockets: several of them, some of which break, and calls over HTTP/2."""

import socket
import ssl
import struct
from contextlib import AsyncExitStack

import anyio
import httpx
import pytest
from servers import HANG_S, Steps, app_with, raw_server, served, three

from certificates import new_certificate
from shoal.asgi.http_options import HttpOptions
from shoal.http_client import HttpClient, SyncHttpClient
from shoal.server.server import serve

pytestmark = pytest.mark.real_time


def named(name):
    """An application whose endpoint says its name."""

    async def names(items: list) -> list:
        await anyio.lowlevel.checkpoint()
        return [name] * len(items)

    return app_with(x=names)


async def first_at(client, is_first, item=(1,)):
    """Makes calls until one begins with the server that is wanted; returns its outcome."""
    for _ in range(3):
        before = is_first()
        try:
            outcome = await client.call("/x", *item)
        except Exception as error:
            outcome = error
        if is_first() != before:
            return outcome
    raise AssertionError("no call went there")


async def test_servers_that_end_and_start_one_after_the_other_lose_no_call():
    outcomes = []
    is_over = False

    async def run(name, port, stop, *, task_status):
        config = HttpOptions(port=port, graceful_timeout_s=1)
        await serve(named(name), config, shutdown=stop.wait, on_listening=task_status.started)

    async def call():
        outcomes.append(await client.call("/x", 1))

    async def call_again_and_again():
        while not is_over:
            await call()

    async def until_it_answers(name):
        began = len(outcomes)
        while name not in outcomes[began:]:
            await call()

    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(HANG_S))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stops = {name: anyio.Event() for name in "abAB"}
        urls = {name: await tasks.start(run, name, 0, stops[name]) for name in "ab"}
        client = await stack.enter_async_context(HttpClient(list(urls.values())))
        async with anyio.create_task_group() as callers:
            for _ in range(3):
                callers.start_soon(call_again_and_again)
            for name, url in urls.items():
                await until_it_answers(name)
                stops[name].set()
                ended = len(outcomes)
                while len(outcomes) < ended + 30:
                    await call()
                assert name not in outcomes[ended + 20 :]
                again = name.upper()
                await tasks.start(run, again, int(url.rpartition(":")[2]), stops[again])
                await until_it_answers(again)
            is_over = True
        for stop in stops.values():
            stop.set()
    assert set(outcomes) == set("abAB")


@pytest.mark.one_loop  # asyncio reports only after the body that the head could not be sent
async def test_a_connection_that_is_reset_before_the_request_sends_it_to_another():
    was_reset = anyio.Event()
    began = []

    async def reset(stream):
        began.append(True)
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        was_reset.set()

    class Transport(httpx.AsyncHTTPTransport):
        """Holds the first request back until its connection was reset."""

        async def handle_async_request(self, request):
            async def trace(event, info):
                if event == "connection.connect_tcp.complete" and str(request.url.port) in bad:
                    await was_reset.wait()

            request.extensions["trace"] = trace
            return await super().handle_async_request(request)

    async with raw_server(reset) as bad, served(named("good")) as good:
        client = httpx.AsyncClient(transport=Transport())
        async with HttpClient([bad, good], client=client) as client:
            assert await first_at(client, lambda: len(began)) == "good"
            assert began == [True]


@pytest.mark.parametrize(
    "answer", [b"", b"\x00\xff\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{"]
)
async def test_a_server_that_took_the_request_and_sends_rubbish_gets_the_call_alone(answer):
    took = []

    async def answers(stream):
        took.append(await stream.receive())
        if answer:
            await stream.send(answer)

    async with (
        raw_server(answers) as bad,
        served(named("good")) as good,
        HttpClient([bad, good]) as client,
    ):
        assert type(await first_at(client, lambda: len(took))) is ConnectionError
        assert len(took) == 1
        if not answer.startswith(b"HTTP/1.1 200"):
            assert [await client.call("/x", 1) for _ in range(4)] == ["good"] * 4


@pytest.mark.parametrize("item", [(), (1,)])
async def test_a_server_without_tls_sends_its_calls_to_one_with_it(tmp_path, item):
    files = new_certificate(tmp_path)
    began = []

    async def rubbish(stream):
        began.append(True)
        await stream.send(b"220 mail ESMTP\r\n")
        await stream.receive()

    tls = ssl.create_default_context(cafile=files["certfile"])
    async with raw_server(rubbish) as bad, served(named("good"), **files) as good:
        urls = [bad.replace("http:", "https:"), good]
        async with HttpClient(urls, client=httpx.AsyncClient(verify=tls)) as client:
            assert await first_at(client, lambda: len(began), item) == "good"


async def test_the_certificate_of_an_address_is_checked_for_its_name(tmp_path, monkeypatch):
    async def look_up(host, port, *, type, flags):  # noqa: A002 (as of the system)
        return [(0, type, 6, "", (at, port)) for at in ("127.0.0.2", "127.0.0.3")]

    monkeypatch.setattr(anyio, "getaddrinfo", look_up)
    files = new_certificate(tmp_path)  # for localhost, and for no such address
    tls = ssl.create_default_context(cafile=files["certfile"])
    async with served(named("a"), host="127.0.0.2", **files) as url:
        port = int(url.rpartition(":")[2])
        async with (
            served(named("b"), host="127.0.0.3", port=port, **files),
            HttpClient(
                f"dns:https://localhost:{port}", client=httpx.AsyncClient(verify=tls)
            ) as client,
            HttpClient(f"dns:https://other:{port}", client=httpx.AsyncClient(verify=tls)) as other,
        ):
            assert sorted([await client.call("/x", 1) for _ in range(4)]) == ["a", "a", "b", "b"]
            with pytest.raises(ConnectionError, match=r"no secure connection to .*other"):
                await other.call("/x", 1)


async def test_threads_call_several_servers():
    def call(urls):
        with SyncHttpClient(urls) as client:
            assert client.url == f"{urls[0]}, {urls[1]}"
            found = {client.call("/x", 1) for _ in range(4)}
            return found, client.map("/x", [1, 2])

    async with served(named("a")) as first, served(named("b")) as second:
        found, mapped = await anyio.to_thread.run_sync(call, [first, second])
    assert found == {"a", "b"}
    assert mapped in (["a", "a"], ["b", "b"])


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
