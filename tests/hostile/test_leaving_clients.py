"""Clients that leave: the handler of their request is cancelled, whatever the state."""

from __future__ import annotations

import itertools

import pytest
from good_client import request
from hostile_server import flaws_of_log
from leaving_run import STATES, WAYS, leave, leave_queue, ways_of

pytestmark = pytest.mark.real_time

names = (f"leaving-{number}" for number in itertools.count())


@pytest.mark.parametrize(
    ("state", "way"), [(state, way) for state in STATES for way in ways_of(state)]
)
def test_a_client_that_leaves_ends_its_handler(server, state, way):
    assert leave(server, state, way, next(names)) is not None


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_the_queue_never_reaches_the_handler(server, way):
    assert leave_queue(server, way, next(names)) is not None


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_client_that_has_left_before_its_call_begins_is_no_error(servers, loop):
    server = servers.get(loop)
    before = server.log_size()
    with server.connect() as blocker:
        blocker.sendall(b"GET /raw/block?300 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with server.connect() as client:
            client.sendall(request("/sum", "left"))
        assert blocker.recv(2**16)
    assert server.ask("POST", "/sum", "behind")[0] == 200
    assert flaws_of_log(server.log()[before:]) == []
