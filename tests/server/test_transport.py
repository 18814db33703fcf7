"""A transport whose client does not read: what is kept, and when there is room again."""

from __future__ import annotations

import socket
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from live_server import HANG_S

from shoal.loops.this_loop import parking_of_this_loop
from shoal.server.sockets.transport import EpollPoller, Receiver, TaskPoller, Transport

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

POLLERS = ["tasks", *(["epoll"] if sys.platform == "linux" else [])]


class Noting(Receiver):
    """Notes when all was sent."""

    def __init__(self):
        self.room = anyio.Event()

    def all_sent(self):
        self.room.set()

    def data_received(self, data):
        pass

    client_ended = connection_lost = lambda self: None


@asynccontextmanager
async def connected(kind):
    """A transport, its receiver, and the client's socket, in a server's place."""
    ours, theirs = socket.socketpair()
    poller = EpollPoller(parking_of_this_loop()) if kind == "epoll" else TaskPoller()
    with theirs, anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poller.run)
            await anyio.wait_all_tasks_blocked()
            transport = Transport(ours, poller)
            transport.receiver = receiver = Noting()
            transport.start()
            yield transport, receiver, theirs
            transport.close()
            tasks.cancel_scope.cancel()


def read_some(client):
    """All that the kernel has for the client now."""
    client.setblocking(False)
    received = b""
    while True:
        try:
            received += client.recv(2**16)
        except BlockingIOError:
            return received


async def read_until_room(client, receiver):
    received = b""
    while not receiver.room.is_set():
        received += read_some(client)
        await anyio.lowlevel.checkpoint()
    return received + read_some(client)


def fill(transport):
    """Sends what the kernel takes whole; returns how much that was."""
    sent = 0
    while transport.has_room():
        assert transport.send(b"x" * 2**10)
        sent += 2**10
    return sent


@pytest.mark.parametrize("kind", POLLERS)
async def test_a_transport_without_room_keeps_nothing_and_tells_when_there_is_room(kind):
    async with connected(kind) as (transport, receiver, client):
        sent = fill(transport)
        assert sent
        assert transport.is_blocked
        assert not transport.unsent
        assert len(await read_until_room(client, receiver)) == sent
        assert not transport.is_blocked
        assert transport.has_room()


@pytest.mark.parametrize("kind", POLLERS)
async def test_reading_again_meanwhile_changes_nothing(kind):
    async with connected(kind) as (transport, receiver, client):
        fill(transport)
        transport.pause()
        transport.resume()
        await anyio.wait_all_tasks_blocked()
        assert transport.is_blocked
        await read_until_room(client, receiver)


@pytest.mark.parametrize("kind", POLLERS)
async def test_what_is_sent_meanwhile_comes_behind_it_and_copies_nothing(kind):
    async with connected(kind) as (transport, receiver, client):
        large = b"a" * 2**24
        assert not transport.send(large)
        assert not transport.send(b"b" * 100)
        assert not transport.send(b"c" * 100)
        assert transport.unsent.obj is large
        received = await read_until_room(client, receiver)
        assert received == large + b"b" * 100 + b"c" * 100
        assert not transport.is_blocked


@pytest.mark.parametrize("kind", POLLERS)
async def test_what_was_sent_may_be_changed_afterwards(kind):
    async with connected(kind) as (transport, receiver, client):
        piece = bytearray(b"a" * 2**24)
        assert not transport.send(piece)
        piece.clear()  # fails while there is a view
        assert await read_until_room(client, receiver) == b"a" * 2**24


@pytest.mark.parametrize("kind", POLLERS)
async def test_a_closed_transport_has_room(kind):
    async with connected(kind) as (transport, _, _):
        fill(transport)
        transport.close()
        assert transport.has_room()
        assert not transport.is_blocked
