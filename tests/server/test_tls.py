"""TLS and UNIX sockets, with real clients."""

from __future__ import annotations

import hashlib
import socket
import ssl
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
from shoal.server.sockets.tls import tls_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Served:
    """A server of its own URL."""

    def __init__(self):
        self.url = ""
        self.stop = anyio.Event()


async def serving(tasks, app, **options):
    served = Served()
    run = partial(shoal.serve, app, shutdown_trigger=served.stop.wait, port=0, **options)
    [served.url] = await tasks.start(run)
    return served


async def test_requests_are_answered_over_tls(certificate):
    context = ssl.create_default_context(cafile=certificate["certfile"])
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, EchoApp(), **certificate)
        assert served.url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=context) as client:
            for word in (b"once", b"again"):
                assert (await client.post(served.url, content=word)).content == word
        served.stop.set()


async def test_a_large_body_goes_both_ways_whole(certificate):
    body = bytes(range(256)) * 20_000
    context = ssl.create_default_context(cafile=certificate["certfile"])
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, EchoApp(), **certificate)
        async with httpx.AsyncClient(verify=context) as client:
            answer = await client.post(served.url, content=body)
        served.stop.set()
    assert hashlib.sha256(answer.content).digest() == hashlib.sha256(body).digest()


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_the_protocol_is_negotiated(certificate, protocol):
    context = ssl.create_default_context(cafile=certificate["certfile"])
    context.set_alpn_protocols([protocol])
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, EchoApp(), **certificate)
        port = int(served.url.rpartition(":")[2])
        async with await anyio.connect_tcp(
            "127.0.0.1", port, ssl_context=context, tls_hostname="localhost"
        ) as stream:
            agreed = stream.extra(anyio.streams.tls.TLSAttribute.alpn_protocol)
        served.stop.set()
    assert agreed == protocol


async def test_the_scope_says_https(certificate):
    schemes = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            schemes.append(scope["scheme"])
        await EchoApp()(scope, receive, send)

    context = ssl.create_default_context(cafile=certificate["certfile"])
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, app, **certificate)
        async with httpx.AsyncClient(verify=context) as client:
            await client.get(served.url)
        served.stop.set()
    assert schemes == ["https"]


async def closed(client):
    """Waits until the server closes the connection."""
    while True:
        try:
            await client.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x16"])
async def test_what_is_no_tls_is_closed_and_the_server_goes_on(certificate, sent, caplog):
    context = ssl.create_default_context(cafile=certificate["certfile"])
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, EchoApp(), keep_alive_timeout_s=0.1, **certificate)
        port = int(served.url.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as rude:
            await rude.send(sent)
            assert await closed(rude)
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(served.url)).status_code == 200
        served.stop.set()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("options", "named"),
    [({"certfile": "none.pem"}, "none.pem"), ({"certfile": __file__}, __file__)],
)
async def test_a_certificate_that_cannot_be_used_is_named(options, named):
    with pytest.raises(OSError) as caught:
        await shoal.serve(EchoApp(), port=0, **options)
    assert caught.value.filename == named


async def test_a_key_without_a_certificate_is_refused():
    with pytest.raises(ValueError, match=r"keyfile='key\.pem' needs certfile"):
        await shoal.serve(EchoApp(), keyfile="key.pem")


async def test_requests_are_answered_at_a_unix_socket(tmp_path):
    path = str(tmp_path / "s")
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, EchoApp(), uds=path)
        assert served.url == f"unix:{path}"
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as client:
            assert (await client.get("http://any/")).content == b"hello"
        served.stop.set()


async def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match=r"shoal\.serve has no option 'prot'; did you mean 'port'"):
        await shoal.serve(EchoApp(), prot=1)


async def test_without_a_trigger_it_serves_until_it_is_cancelled():
    async with anyio.create_task_group() as tasks:
        [url] = await tasks.start(partial(shoal.serve, EchoApp(), port=0))
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request("/hold"))
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_an_application_that_does_not_start_raises():
    async def broken(scope, receive, send):
        await receive()
        raise RuntimeError("no model")

    with pytest.raises(shoal.errors.LifespanFailed, match="no model"):
        await shoal.serve(broken, port=0)


async def test_a_shoal_app_turns_not_ready_when_the_shutdown_begins():
    app = shoal.App()
    drains = []
    app.begin_drain = lambda: drains.append(True)
    async with anyio.create_task_group() as tasks:
        served = await serving(tasks, app)
        served.stop.set()
    assert drains == [True]


async def test_a_certificate_that_was_read_is_not_read_again(certificate):
    options = HttpOptions(port=0, **certificate)
    gone = replace(options, certfile="gone.pem", keyfile=None)
    context = ssl.create_default_context(cafile=certificate["certfile"])
    stop, started = anyio.Event(), anyio.Event()
    urls = []

    async def run():
        await serve(
            EchoApp(),
            gone,
            shutdown=stop.wait,
            started=lambda url: (urls.append(url), started.set()),
            tls=tls_of(options),
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await started.wait()
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.post(urls[0], content=b"once")).content == b"once"
        stop.set()
