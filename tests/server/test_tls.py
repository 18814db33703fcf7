"""TLS and UNIX sockets, with real clients."""

import hashlib
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import anyio
import httpx
import pytest
from echo_app import EchoApp
from live_server import request

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from shoal.server.tls import tls_of

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def serving(app, **options):
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        [url] = await tasks.start(
            partial(shoal.serve, app, shutdown_trigger=stop.wait, port=0, **options)
        )
        yield url
        stop.set()


def trusting(certificate):
    return ssl.create_default_context(cafile=certificate["certfile"])


def client_trusting(certificate):
    return httpx.AsyncClient(verify=trusting(certificate))


async def test_requests_are_answered_over_tls(certificate):
    schemes = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            schemes.append(scope["scheme"])
        await EchoApp()(scope, receive, send)

    async with serving(app, **certificate) as url, client_trusting(certificate) as client:
        assert url.startswith("https://127.0.0.1:")
        for word in (b"once", b"again"):
            assert (await client.post(url, content=word)).content == word
    assert schemes == ["https", "https"]


async def test_a_large_body_goes_both_ways_whole(certificate):
    body = bytes(range(256)) * 20_000
    async with serving(EchoApp(), **certificate) as url, client_trusting(certificate) as client:
        answer = await client.post(url, content=body)
    assert hashlib.sha256(answer.content).digest() == hashlib.sha256(body).digest()


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_the_protocol_is_negotiated(certificate, protocol):
    context = trusting(certificate)
    context.set_alpn_protocols([protocol])
    async with serving(EchoApp(), **certificate) as url:
        port = int(url.rpartition(":")[2])
        async with await anyio.connect_tcp(
            "127.0.0.1", port, ssl_context=context, tls_hostname="localhost"
        ) as stream:
            agreed = stream.extra(anyio.streams.tls.TLSAttribute.alpn_protocol)
    assert agreed == protocol


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x16"])
async def test_what_is_no_tls_is_closed_and_the_server_goes_on(certificate, sent, caplog):
    async with serving(EchoApp(), keep_alive_timeout_s=0.1, **certificate) as url:
        port = int(url.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as rude:
            await rude.send(sent)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):  # until it is closed
                while True:
                    await rude.receive()
        async with client_trusting(certificate) as client:
            assert (await client.get(url)).status_code == 200
    assert caplog.records == []


@pytest.mark.parametrize(
    ("options", "named"),
    [({"certfile": "none.pem"}, "none.pem"), ({"certfile": __file__}, __file__)],
)
async def test_a_certificate_that_cannot_be_used_is_named(options, named):
    with pytest.raises(OSError) as caught:
        await shoal.serve(EchoApp(), port=0, **options)
    assert caught.value.filename == named


async def test_an_unknown_option_is_named():
    with pytest.raises(
        TypeError, match=r"'prot' is not an option of shoal\.serve; did you mean 'port'"
    ):
        await shoal.serve(EchoApp(), prot=1)


async def test_without_a_trigger_it_serves_until_it_is_cancelled():
    async with anyio.create_task_group() as tasks:
        [url] = await tasks.start(partial(shoal.serve, EchoApp(), port=0))
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request("/hold"))
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_shoal_app_turns_not_ready_when_the_shutdown_begins(app):
    drains = []
    app.begin_drain = lambda: drains.append(True)
    async with serving(app):
        pass
    assert drains == [True]


async def test_a_certificate_that_was_read_is_not_read_again(certificate):
    options = HttpOptions(port=0, **certificate)
    gone = replace(options, certfile="gone.pem", keyfile=None)
    stop, started = anyio.Event(), anyio.Event()
    urls = []

    async def run():
        await serve(
            EchoApp(),
            gone,
            shutdown=stop.wait,
            on_listening=lambda url: (urls.append(url), started.set()),
            tls=tls_of(options),
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await started.wait()
        async with client_trusting(certificate) as client:
            assert (await client.post(urls[0], content=b"once")).content == b"once"
        stop.set()
