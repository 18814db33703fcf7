"""The poller for platforms without epoll, alone: mistakes of receivers, and sends in a row."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from live_server import HANG_S, until_quiet

from shoal.loops.this_loop import parking_of_this_loop
from shoal.server.sockets import transport
from shoal.server.sockets.transport import (
    EpollPoller,
    Receiver,
    TaskPoller,
    Transport,
    new_poller,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

PIECE = bytes(2**20)


class Mistaken(Receiver):
    """Makes a mistake at each report but that of the connection's end."""

    def __init__(self):
        self.lost = anyio.Event()

    def data_received(self, data):
        raise LookupError("a mistake of the server's")

    client_ended = all_sent = lambda self: self.data_received(b"")

    def connection_lost(self):
        self.lost.set()


class Eager(Receiver):
    """Sends again as soon as all is sent, so often."""

    def __init__(self, sends):
        self.sends = sends
        self.done = anyio.Event()

    def start(self, transport):
        self.transport = transport
        transport.receiver = self
        transport.start()
        self.all_sent()

    def all_sent(self):
        while self.sends:
            self.sends -= 1
            if not self.transport.send(PIECE):
                return
        self.transport.close()
        self.done.set()

    def data_received(self, data):
        pass

    client_ended = connection_lost = lambda self: None


def connected_pair():
    ours, theirs = socket.socketpair()
    theirs.settimeout(HANG_S / 4)
    return ours, theirs


@asynccontextmanager
async def running_poller():
    polling = TaskPoller()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(polling.run)
            await anyio.wait_all_tasks_blocked()
            yield polling
            tasks.cancel_scope.cancel()


def read_to_end(client):
    with client.makefile("rb") as received:
        return received.read()


@pytest.mark.parametrize("report", ["data", "end", "sent"])
async def test_an_error_in_a_connection_ends_that_alone(report, caplog):
    async with running_poller() as polling:
        ours, theirs = connected_pair()
        with theirs:
            mistaken = Mistaken()
            transport = Transport(ours, polling)
            transport.receiver = mistaken
            transport.start()
            if report == "data":
                theirs.send(b"x")
            elif report == "end":
                theirs.shutdown(socket.SHUT_WR)
            else:
                assert not transport.send(PIECE)
                await anyio.to_thread.run_sync(read_to_end, theirs)
            await mistaken.lost.wait()
            assert not transport.is_open
        (ours, theirs), eager = connected_pair(), Eager(0)
        with theirs:
            eager.start(Transport(ours, polling))  # it goes on
            await eager.done.wait()
    assert [record.getMessage() for record in caplog.records] == ["an error ended a connection"]


async def test_what_is_sent_when_all_was_sent_is_sent_too():
    """Two tasks must not wait for one socket, which the event loops refuse."""
    async with running_poller() as polling:
        ours, theirs = connected_pair()
        with theirs:
            eager = Eager(5)
            eager.start(Transport(ours, polling))
            received = await anyio.to_thread.run_sync(read_to_end, theirs)
    assert len(received) == 5 * len(PIECE)


async def test_a_connection_that_is_closed_while_reading_is_paused_leaves_no_task():
    async with running_poller() as polling:
        ours, theirs = connected_pair()
        with theirs:
            transport = Transport(ours, polling)
            transport.receiver = Eager(0)
            transport.start()
            transport.pause()
            await until_quiet()
            assert polling_tasks() == 1
            transport.close()
            await until_quiet()
            assert polling_tasks() == 0


async def test_what_is_sent_after_its_end_is_kept_by_the_transport():
    """As by an application that is cancelled with the server, and has a last word."""
    async with running_poller() as polling:
        ours, theirs = connected_pair()
        transport = Transport(ours, polling)
        transport.receiver = Eager(0)
        transport.start()
    with theirs:
        assert not transport.send(PIECE)
        assert transport.is_open
        transport.close()


def polling_tasks():
    """How many tasks watch a socket."""
    return sum("TaskPoller._run" in str(task.name) for task in anyio.get_running_tasks())


WITHOUT_EPOLL = """
import select
for name in dir(select):
    if name.lower().startswith("epoll") or name == "POLLRDHUP":
        delattr(select, name)
import asyncio, functools, urllib.request
import anyio, shoal

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})

async def main():
    async with anyio.create_task_group() as tasks:
        [url] = await tasks.start(functools.partial(shoal.serve, app, port=0))
        print(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))
        tasks.cancel_scope.cancel()

asyncio.run(main())
"""


def test_a_server_without_epoll_serves():
    ran = subprocess.run([sys.executable, "-c", WITHOUT_EPOLL], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("b'served'\n", "")


async def test_platforms_without_epoll_have_it(monkeypatch):
    assert isinstance(new_poller(parking_of_this_loop()), EpollPoller)
    monkeypatch.delattr(transport.select, "epoll")
    assert isinstance(new_poller(parking_of_this_loop()), TaskPoller)
