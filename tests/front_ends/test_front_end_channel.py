"""The channel between a worker and the server's process: whole messages, in order, of any size."""

import os
import socket
from contextlib import asynccontextmanager

import anyio
import pytest

from shoal.front_ends.wire import Channel
from shoal.replicas.process.wire.frames import FrameReader
from shoal.replicas.process.wire.shared_memory import Region, SharedMemory, new_memory
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

MEMORY = 2**20


class End:
    """One end, and what it has received."""

    def __init__(self, sock, outgoing, incoming):
        self.failures = []
        reader = FrameReader()
        self.channel = Channel(sock, reader, outgoing, incoming, self.failures.append)
        self.received = []
        self._came = anyio.Event()

    def take(self, messages):
        self.received += messages
        self._came.set()

    async def wait_for(self, count):
        while len(self.received) < count:
            self._came = anyio.Event()
            await self._came.wait()


@asynccontextmanager
async def connected(*, shares_memory):
    ours, theirs = socket.socketpair()
    fd = new_memory(MEMORY) if shares_memory else None
    memory = SharedMemory(fd, MEMORY)
    if fd is not None:
        os.close(fd)
    ends = (
        End(ours, memory.requests, memory.replies),
        End(theirs, memory.replies, memory.requests),
    )
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            for end in ends:
                tasks.start_soon(end.channel.run, end.take)
            yield ends
            tasks.cancel_scope.cancel()
    for end in ends:
        end.channel.close()


@pytest.fixture(params=[True, False], ids=["with shared memory", "without"])
def shares_memory(request):
    return request.param


async def test_messages_of_all_sizes_come_whole_and_in_order(shares_memory):
    sizes = [0, 1, 16_383, 65_536, 70_000, 5, 3 * MEMORY, 2, *[1000] * 300, 100_000, 0]
    posted = [("last", id_, b"d" * size) for id_, size in enumerate(sizes)]
    async with connected(shares_memory=shares_memory) as (one, other):
        for name, id_, content in posted:
            one.channel.post(name, id_, content, len(content))
        await other.wait_for(len(sizes))
    assert other.received == posted


async def test_memory_is_given_back(shares_memory):
    """Ten times as much as there is passes, in both directions."""
    data = b"x" * (MEMORY // 4)
    async with connected(shares_memory=shares_memory) as (one, other):
        for nth in range(1, 41):
            one.channel.post("request", nth, data, len(data))
            await other.wait_for(nth)
            other.channel.post("last", nth, data, len(data))
            await one.wait_for(nth)
    assert {content for _, _, content in one.received} == {data}


async def test_what_is_no_frame_ends_the_channel():
    ours, theirs = socket.socketpair()
    end = End(theirs, Region(), Region())
    with ours, anyio.fail_after(HANG_S):
        ours.sendall(b"\xff" * 64)
        await end.channel.run(end.take)
    [failure] = end.failures
    assert isinstance(failure, Exception)
    end.channel.close()
