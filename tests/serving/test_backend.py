"""One backend by itself: whoever waits for it is told when it ends, and why it does not work."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from batching.scenes import settle
from serving.scenes import Stage, echo, never, under_way
from shoal.core.events import Observers
from shoal.errors import ShoalError
from shoal.policies import WholeQueuePolicy
from shoal.replicas.code.definition import Definition
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backends.backend import Backend
from shoal.serving.devices import Devices


@asynccontextmanager
async def running(code: Any, stage: Stage, **config: Any) -> AsyncGenerator[Backend]:
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


@pytest.mark.parametrize("closes", [True, False])
async def test_who_waits_for_the_first_replica_is_told_that_the_backend_has_ended(closes):
    stage = Stage()
    stage.start = never
    async with anyio.create_task_group() as tasks:
        async with running(echo, stage) as backend:
            [caller] = await under_way(tasks, backend.method_batcher("__call__"))
            if closes:
                with anyio.fail_after(100):
                    backend.end_at_once()
                    await backend.close()
        await settle()
        assert isinstance(caller.outcome, ShoalError)
        tasks.cancel_scope.cancel()


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class Breaking(WholeQueuePolicy):
    def __init__(self, _options: Any) -> None:
        super().__init__()

    def choose(self, *_: Any) -> Any:
        raise Empty("no")


async def test_an_error_that_is_false_shows_that_its_batcher_is_broken() -> None:
    async with running(echo, Stage(), policy=Breaking) as backend:
        method_batcher = await backend.method_batcher("__call__")
        with pytest.raises(ShoalError):
            await method_batcher.batcher.call(1)
        assert (backend.state, backend.status().failure) == ("unavailable", "no")
