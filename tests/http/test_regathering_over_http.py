"""Clients in closed loops stay in one batch over HTTP, too; see `batching/test_regathering.py`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from held_app import served

import shoal

pytestmark = pytest.mark.anyio

MOST = 32
ROUNDS = 40
RUN_S = 0.01
THINK_S = 0.002


class Model:
    """An application that notes the sizes of its batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.app = shoal.App()
        for path, code in (("/results", self.results), ("/steps", self.steps)):
            self.app.endpoint(path, max_batch_size=MOST, placement="task")(code)

    async def results(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        await anyio.sleep(RUN_S + 0.0001 * len(items))
        return items

    async def steps(self, items: list[int]) -> Any:
        self.sizes.append(len(items))
        for _ in range(4):
            await anyio.sleep(RUN_S / 4)
            yield items

    def mean(self) -> float:
        """The mean size while all call, without the batches in which the rule learned."""
        count = len(self.sizes)
        settled = self.sizes[count // 2 : count - count // 20]
        return sum(settled) / len(settled)


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
        await anyio.sleep(THINK_S * (0.5 + (number * 7 + nth * 3) % clients / clients))
        came = anyio.Event()
        client.wire.sent = b""
        client.ask(path, number)
        await came.wait()
        assert client.wire.sent.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/results", "/steps"])
@pytest.mark.parametrize("clients", [16, 64])
async def test_clients_in_closed_loops_are_gathered_again(path, clients):
    model = Model()
    async with served(model.app) as server, anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(in_a_loop, server, path, number, clients)
    assert model.mean() >= 0.85 * min(clients, MOST)
