"""One backend by itself: whoever waits for it is told when it ends."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from batching.scenes import PENDING, line_up, settle
from serving.scenes import Stage, echo, never, slowly
from shoal.core.events import Observers
from shoal.errors import ShoalError
from shoal.replicas.code.definition import Definition
from shoal.serving.backends.backend import Backend
from shoal.serving.backends.update import changed
from shoal.serving.config.config import BackendConfig
from shoal.serving.devices import Devices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(code: Any, stage: Stage, **config: Any) -> AsyncGenerator[Backend]:
    """Runs a backend for as long as the block takes, and cancels it then."""
    backend = Backend(
        "b",
        Definition(code),
        BackendConfig(placement=stage, **config),
        prepare=lambda _: None,
        enter=lambda: None,
        observers=Observers(),
        devices=Devices(),
    )

    async def run(*, task_status: Any) -> None:
        await backend.run(task_status=task_status)

    async with anyio.create_task_group() as tasks:
        await tasks.start(run)
        yield backend
        tasks.cancel_scope.cancel()


async def scale(backend: Backend, num_replicas: int) -> None:
    async with changed(backend, backend.config.changed({"num_replicas": num_replicas})):
        pass


async def test_who_waits_for_the_first_replica_is_told_that_it_is_closed() -> None:
    stage = Stage()
    stage.start = never
    async with anyio.create_task_group() as tasks, running(echo, stage) as backend:
        [caller] = await line_up(tasks, backend.method_batcher("__call__"))
        await settle()
        with anyio.fail_after(100):
            await backend.close(at_once=True)
        await settle()
        assert isinstance(caller.outcome, ShoalError)


async def test_who_waits_for_the_first_replica_is_told_that_it_was_cancelled() -> None:
    stage = Stage()
    stage.start = never
    async with anyio.create_task_group() as tasks:
        async with running(echo, stage) as backend:
            [caller] = await line_up(tasks, backend.method_batcher("__call__"))
            await settle()
        await settle()
        assert isinstance(caller.outcome, ShoalError)
        tasks.cancel_scope.cancel()


async def test_a_replica_takes_any_number_of_batches_where_none_is_said() -> None:
    stage = Stage()
    config: dict[str, Any] = {"max_batch_size": 1, "max_concurrent_batches": None}
    async with running(slowly, stage, **config) as backend, anyio.create_task_group() as tasks:
        await backend.ready()
        method_batcher = await backend.method_batcher("__call__")
        await line_up(tasks, *[method_batcher.batcher.find().call(5.0, None) for _ in range(50)])
        await settle()
        assert method_batcher.batcher.statistics().batches_running == 50
        assert method_batcher.batcher.scheduling_capacity() == math.inf


async def test_who_waits_for_replicas_to_drain_does_not_outwait_their_backend() -> None:
    async with anyio.create_task_group() as tasks:
        async with running(slowly, Stage(), num_replicas=2, max_batch_size=1) as backend:
            await backend.ready()
            method_batcher = await backend.method_batcher("__call__")
            entry = method_batcher.batcher.find()
            await line_up(tasks, *[entry.call(50.0, None) for _ in range(2)])
            await settle()
            [scaling] = await line_up(tasks, scale(backend, 1))
            await anyio.sleep(1)
            assert scaling.outcome is PENDING
        await settle()
        assert scaling.outcome is None  # the change was made, and nothing is left to drain
        tasks.cancel_scope.cancel()
