"""Clients in closed loops stay in one batch over HTTP, too; see `batching/test_regathering.py`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from held_app import served
from server_in_memory import Wire

import shoal
from closed_loops import LOADS, Sizes, assert_no_slower, at_random, think
from shoal.core.request import DispatchReason
from shoal.testing.asgi import ask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MOST = 64
PATHS = ["/results", "/steps"]


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


@asynccontextmanager
async def serving_model(**options: Any) -> AsyncGenerator[tuple[Any, Any, Sizes]]:
    """Serves a model that notes its batches; it is the application, the server and the model."""
    model = Sizes()
    app = shoal.App()
    for path, code in zip(PATHS, (model.results, model.steps), strict=True):
        app.endpoint(path, **{"max_batch_size": MOST, "placement": "task"} | options)(code)
    async with served(app) as server:
        yield app, server, model


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


async def asked_at(server: Any, path: str, trace: list[float]) -> list[float]:
    """Asks at each of these times; returns how long each answer took."""
    began_at = anyio.current_time()
    took: list[float] = []
    idle: list[Asking] = []
    all_came = anyio.Event()

    def came(wire: Asking, at: float) -> None:
        took.append(anyio.current_time() - began_at - at)
        idle.append(wire)
        if len(took) == len(trace):
            all_came.set()

    for number, at in enumerate(trace):
        await anyio.sleep_until(began_at + at)
        wire = idle.pop(0) if idle else Asking(server, path)
        wire.ask(number, lambda wire=wire, at=at: came(wire, at))
    await all_came.wait()
    return took


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("clients", "rounds"), [(16, 20), (32, 20), (64, 20), (128, 8), (256, 6)])
async def test_clients_in_closed_loops_are_gathered_again(path, clients, rounds):
    means = {}
    for regather in (True, False):
        if regather or clients == MOST:  # more clients fill batches anyway
            async with serving_model(regather=regather) as (_, server, model):
                await in_loops(server, path, clients, rounds)
            means[regather] = model.mean() / min(clients, MOST)
    assert means[True] >= 0.85
    assert means.get(False, 0) < 0.6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("load", LOADS)
async def test_requests_at_random_are_answered_as_fast_as_without_it(path, load):
    trace = at_random(load, 8, 600)
    took_s = {}
    for regather in (True, False):
        async with serving_model(max_batch_size=8, regather=regather) as (_, server, _):
            took_s[regather] = await asked_at(server, path, trace)
    assert_no_slower(took_s[True], took_s[False])


@pytest.mark.parametrize("path", PATHS)
async def test_clients_who_ask_at_random_later_are_not_waited_for_after_20_batches(path):
    async with serving_model() as (app, server, model):
        await in_loops(server, path, 16, 20)
        before = len(model.reasons)
        assert DispatchReason.REGATHER in model.reasons[before - 3 :]
        metrics = (await ask(app, "/-/metrics", method="GET")).body.decode()
        await asked_at(server, path, at_random(0.2, MOST, 600))
    assert len(model.reasons) > before + 40
    assert DispatchReason.REGATHER not in model.reasons[before + 20 :]
    count = float(model.reasons[:before].count(DispatchReason.REGATHER))
    labels = f'backend="{path[1:]}",method="__call__",reason="regather"'
    assert f"shoal_batches_total{{{labels}}} {count}" in metrics
