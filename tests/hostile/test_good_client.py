"""The good client: it asks from the start, and until it is told to end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import good_client
import pytest
from checksum import checksum
from good_client import AskingMeanwhile

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def test_however_short_its_time_is_it_asks(server):
    with AskingMeanwhile(server) as others:
        pass
    assert others.asked.failure == ""
    assert len(others.asked.times_s) >= 1
    assert others.asked.most_memory > 0


class HeldServer:
    """A server of one connection, which answers requests when it is told to."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def accept(self):
        self._client, _ = self._listener.accept()

    def read(self):
        """What the client sends next; empty when it has left."""
        return self._client.recv(2**16)

    def answer(self, nth):
        body = str(checksum(f"good {nth}"))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        self._client.sendall((head + body).encode())

    def close(self):
        self._client.close()
        self._listener.close()


@pytest.fixture
def held_server():
    server = HeldServer()
    yield server
    server.close()


def test_it_asks_at_once_and_ends_after_the_request_that_is_under_way(held_server):
    command = [sys.executable, good_client.__file__, str(held_server.port), str(os.getpid())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        held_server.accept()
        assert b'"good 1"' in held_server.read()
        held_server.answer(1)
        assert process.stdout.readline() == "asking\n"
        assert b'"good 2"' in held_server.read()
        process.stdin.close()
        held_server.answer(2)
        asked = json.loads(process.stdout.read())
        assert (len(asked["times_s"]), asked["failure"]) == (1, "")
        assert held_server.read() == b""
