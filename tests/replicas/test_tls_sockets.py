"""A socket with TLS, as it is used between servers and by the threads of an actor."""

import socket
import threading
from functools import partial
from typing import Any

import anyio
import pytest

from certificates import new_certificate
from shoal.replicas.remote.tls import ServerCertificate, TlsSocket, client_context


@pytest.fixture
async def pair(tmp_path: Any) -> Any:
    """Both ends of a connection after its handshake: the server's, and the client's."""
    certificate = ServerCertificate(**new_certificate(tmp_path))
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    server = TlsSocket(ends[0], certificate.context, server=True)
    client = TlsSocket(ends[1], client_context())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.shake_hands)
        tasks.start_soon(client.shake_hands)
    yield server, client
    server.close()
    client.close()


@pytest.mark.real_time
async def test_a_thread_may_read_a_blocking_one_while_another_writes(pair):
    server, client = pair
    server.setblocking(True)
    client.setblocking(True)
    size = 20_000_000
    received = [bytearray(), bytearray()]

    def read(sock: TlsSocket, into: bytearray) -> None:
        space = memoryview(bytearray(2**16))
        while len(into) < size:
            into += space[: sock.recv_into(space)]

    def write(sock: TlsSocket, byte: bytes) -> None:
        rest = memoryview(byte * size)
        while rest:
            rest = rest[sock.sendmsg([rest]) :]

    jobs = [
        partial(read, client, received[0]),
        partial(read, server, received[1]),
        partial(write, server, b"s"),
        partial(write, client, b"c"),
    ]
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    await anyio.to_thread.run_sync(lambda: [thread.join() for thread in threads])
    assert received == [b"s" * size, b"c" * size]


async def test_one_that_does_not_block_raises_where_it_would(pair):
    server, client = pair
    space = memoryview(bytearray(10))
    with pytest.raises(BlockingIOError):
        client.recv_into(space)
    assert server.sendmsg([b"hello"]) == 5
    await anyio.wait_readable(client)
    assert bytes(space[: client.recv_into(space)]) == b"hello"
