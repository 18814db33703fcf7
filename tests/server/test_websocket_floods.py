"""Clients of WebSockets that send more than can be answered at once: others have their turn."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from server_in_memory import serving as served_in_memory
from test_websocket_frames import framed
from test_websockets_in_memory import SocketClient, serving

from shoal.http.websocket.connection import SocketConnection

pytestmark = pytest.mark.anyio

FLOOD = 1000
MOST_IN_A_TURN = 100  # trio may run one task twice between two runs of another


async def echo(items: list[int]) -> list[int]:
    return items


async def most_in_a_pass(count, until):
    """The most by which a count grows while the other tasks run once."""
    most = before = 0
    while before < until:
        await anyio.lowlevel.checkpoint()
        now = count()
        most, before = max(most, now - before), now
    return most


async def test_pings_are_answered_in_turns():
    app = serving(echo)
    async with app.lifespan(), served_in_memory(app) as server:
        client = await SocketClient.opened(server)
        client.events()
        client.say_data(framed(b"", opcode=9) * FLOOD)
        pong = 2  # bytes
        most = await most_in_a_pass(lambda: len(client.wire.sent) // pong, FLOOD)
        assert most <= MOST_IN_A_TURN


async def test_small_messages_are_taken_in_turns(monkeypatch):
    taken = 0
    handle = SocketConnection._handle

    def counted(self, text, data):
        nonlocal taken
        taken += 1
        handle(self, text, data)

    monkeypatch.setattr(SocketConnection, "_handle", counted)
    app = serving(echo)
    async with app.lifespan(), served_in_memory(app) as server:
        client = await SocketClient.opened(server)
        client.say_data(framed(b'{"id": 1, "cancel": true}') * FLOOD)
        assert await most_in_a_pass(lambda: taken, FLOOD) <= MOST_IN_A_TURN
