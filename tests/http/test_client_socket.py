"""One client's socket: what it says of itself, and what closing it means to either side."""

from __future__ import annotations

import socket

import anyio
import pytest
from echo_app import EchoApp
from live_server import live, read_all, request, until_quiet

from shoal.http.server.client_socket import ClientSocket

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture(params=["tcp", "unix"])
def pair(request):
    if request.param == "unix":
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            theirs = socket.create_connection(listening.getsockname())
            ours, _ = listening.accept()
    with ours, theirs:
        yield ours, theirs


async def test_an_answer_in_parts_waits_for_no_acknowledgement(pair):
    ours, _ = pair
    ClientSocket(ours)
    if ours.family == socket.AF_INET:
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_it_knows_what_is_unread_and_that_the_client_has_ended(pair):
    ours, theirs = pair
    client = ClientSocket(ours)
    assert not client.has_unread()
    theirs.send(b"x")
    await until_quiet()
    assert client.has_unread()
    assert await client.receive(10) == b"x"
    assert not client.has_unread()
    theirs.close()
    await until_quiet()
    assert client.has_unread()
    assert await client.receive(10) == b""


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_its_end_wakes_who_reads_and_who_sends(pair, end):
    ended = []

    async def wait(function, argument):
        with pytest.raises(anyio.ClosedResourceError):
            await function(argument)
        ended.append(function)

    ours, _ = pair
    client = ClientSocket(ours)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, client.receive, 10)
            tasks.start_soon(wait, client.send, bytes(2**24))
            await until_quiet()
            getattr(client, end)()
    assert len(ended) == 2
    with pytest.raises(anyio.ClosedResourceError):
        await client.receive(1)


async def test_who_has_asked_more_than_is_read_still_gets_the_whole_last_answer():
    app = EchoApp()
    async with (
        live(app) as server,
        await server.connect() as client,
        anyio.create_task_group() as tasks,
    ):
        # More than is read ahead, so that some is unread when the last answer ends.
        tasks.start_soon(client.send_all, 2**13 * request("/hold"))
        await app.entered.wait()
        server.stop.set()
        await until_quiet()
        app.release.set()
        answer = await read_all(client)
    assert answer.endswith(b"held")
