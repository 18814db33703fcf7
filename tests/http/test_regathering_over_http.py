"""Clients in closed loops stay in one batch over HTTP, too; see `batching/test_regathering.py`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from held_app import served

import shoal
from closed_loops import Sizes, think

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MOST = 32
ROUNDS = 20


async def in_a_loop(server: Any, path: str, number: int, clients: int) -> None:
    """Has a client ask again and again, each time a moment after its last answer."""
    client = server.connect()
    end = b"\r\n0\r\n\r\n" if path == "/steps" else b"\r\n\r\n%d" % number
    send = client.wire.send

    def send_and_look(data: bytes) -> Any:
        is_taken = send(data)
        if client.wire.sent.endswith(end):
            came.set()
        return is_taken

    client.wire.send = send_and_look
    for nth in range(ROUNDS):
        await think(number, nth, clients)
        came = anyio.Event()
        client.wire.sent = b""
        client.ask(path, number)
        await came.wait()
        assert client.wire.sent.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/results", "/steps"])
@pytest.mark.parametrize("clients", [16, 64])
async def test_clients_in_closed_loops_are_gathered_again(path, clients):
    model = Sizes()
    app = shoal.App()
    for route, code in (("/results", model.results), ("/steps", model.steps)):
        app.endpoint(route, max_batch_size=MOST, placement="task")(code)
    async with served(app) as server, anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(in_a_loop, server, path, number, clients)
    assert model.mean() >= 0.85 * min(clients, MOST)
