"""What a model server logs about ingresses that it refuses again and again."""

import errno
import socket

import anyio
import pytest

from shoal.replicas.remote.handshake import HandshakeRefused
from shoal.server.listeners import BoundSocket
from shoal.serving.controller.controller import Controller
from shoal.serving.model_server.listener import ModelServerListener
from time_limits import HANG_S


async def test_a_refused_ingress_that_reconnects_is_logged_once_a_minute(caplog):
    listener = ModelServerListener([], None)
    refused = HandshakeRefused("the client has another token", "token")
    for attempt in range(100):
        listener._refuse("token", f"the ingress at 10.0.0.1:{attempt}", refused)
        await anyio.sleep(1)
    assert caplog.text.count("the ingress at 10.0.0.1:") == 2
    assert listener.status().refused == {"token": 100}
    # Another host and another reason are news.
    listener._refuse("token", "the ingress at 10.0.0.2:1", refused)
    listener._refuse("timeout", "the ingress at 10.0.0.1:1", "no handshake within 5 s")
    assert len(caplog.records) == 4


async def test_connections_from_anywhere_write_few_log_lines(caplog):
    listener = ModelServerListener([], None)
    for host in range(1000):
        listener._refuse("timeout", f"the ingress at 10.0.{host}:1", "no handshake within 5 s")
    assert len(caplog.records) == 64
    assert listener.status().refused == {"timeout": 1000}
    await anyio.sleep(60)
    listener._refuse("timeout", "the ingress at 10.0.0.1:2", "no handshake within 5 s")
    assert len(caplog.records) == 65


class Exhausted(socket.socket):
    attempts = 0

    def accept(self):
        self.attempts += 1
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.real_time
async def test_a_model_server_that_can_not_accept_ingresses_says_so_once_a_minute(caplog):
    with Exhausted() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        listener = ModelServerListener([BoundSocket(sock)], None)
        async with Controller() as controller, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run, controller)
            with socket.create_connection(sock.getsockname()), anyio.fail_after(HANG_S):
                while sock.attempts < 3:
                    await anyio.lowlevel.checkpoint()
            assert caplog.text.count("can't accept ingresses: Too many open files") == 1
            tasks.cancel_scope.cancel()
