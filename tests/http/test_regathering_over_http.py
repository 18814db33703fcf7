"""Clients in closed loops stay in one batch over HTTP; see `batching/test_forming_batches.py`."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from held_app import served
from server_in_memory import Wire

import shoal
from closed_loops import Sizes, think
from shoal.core.request import DispatchReason
from shoal.testing.asgi import ask

pytestmark = pytest.mark.slow

MOST = 64


class Asking(Wire):
    """The wire of a client, which asks, and is told when its answer is there."""

    def __init__(self, server: Any, path: str) -> None:
        super().__init__()
        self._client = server.connect(self)
        self._path = path
        self._end = b""
        self._came: Callable[[], object] = lambda: None

    def ask(self, number: int, came: Callable[[], object]) -> None:
        self.sent = b""
        self._end = b"\r\n0\r\n\r\n" if self._path == "/steps" else b"\r\n\r\n%d" % number
        self._came = came
        self._client.ask(self._path, number)

    def send(self, data: bytes) -> bool:
        is_taken = super().send(data)
        if self.sent.endswith(self._end):
            assert self.sent.startswith(b"HTTP/1.1 200 ")
            self._came()
        return is_taken


async def in_loops(server: Any, path: str, clients: int, rounds: int) -> None:
    """Has clients ask again and again, each a moment after its last answer."""

    async def loop(number: int) -> None:
        wire = Asking(server, path)
        for nth in range(rounds):
            await think(number, nth, clients)
            came = anyio.Event()
            wire.ask(number, came.set)
            await came.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(loop, number)


@pytest.mark.parametrize("path", ["/results", "/steps"])
@pytest.mark.parametrize(
    ("clients", "rounds"), [pytest.param(16, 10, marks=pytest.mark.one_loop), (MOST, 10)]
)
async def test_clients_in_closed_loops_are_gathered_again(path, clients, rounds):
    means = {}
    for regather in (True, False):
        app, model = shoal.App(), Sizes()
        code = model.results if path == "/results" else model.steps
        app.endpoint(path, max_batch_size=MOST, placement="task", regather=regather)(code)
        async with served(app) as server:
            await in_loops(server, path, clients, rounds)
            metrics = (await ask(app, "/-/metrics", method="GET")).body.decode()
        count = model.reasons.count(DispatchReason.REGATHER)
        labels = f'backend="{path[1:]}",method="__call__",reason="regather"'
        assert f"shoal_batches_total{{{labels}}} {float(count)}" in metrics
        means[regather] = model.mean() / min(clients, MOST)
    assert means[True] >= 0.85
    assert means[False] < 0.6
