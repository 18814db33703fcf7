"""`drop_queued_on_shutdown` of a backend: what waits fails at its end, what runs is answered."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Held, line_up, settle
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle
from shoal.testing.asgi import Call, calling

DROP: dict[str, Any] = {"max_batch_size": 1, "drop_queued_on_shutdown": True}


async def served(controller: Controller, held: Held) -> EndpointHandle:
    await controller.create_backend("held", held, config=DROP)
    await controller.create_endpoint("held", backend="held", route="/held")
    return await controller.get_handle("held")


@pytest.mark.parametrize("how", ["delete the backend", "shut down"])
async def test_what_waits_fails_and_what_runs_is_answered(how: str, held: Held) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await served(controller, held)
        callers = await line_up(tasks, *map(handle.call, range(3)))
        await settle()
        if how == "shut down":
            tasks.start_soon(controller.shutdown)
        else:
            await controller.delete_endpoint("held")
            tasks.start_soon(controller.delete_backend, "held")
        await settle()
        assert [type(caller.outcome) for caller in callers[1:]] == [shoal.errors.BatcherClosed] * 2
        held.gate.set()
    assert callers[0].outcome == 0
    assert held.cancelled == []


async def test_a_server_refuses_what_waits_as_soon_as_it_is_told_to_end(held: Held) -> None:
    app = shoal.App()
    app.endpoint("/held", **DROP)(held)
    running, waiting = (Call(app, "/held", item=item) for item in ("running", "waiting"))
    async with app.lifespan(), calling(running) as tasks:
        await settle()
        tasks.start_soon(waiting.run)
        await settle()
        app.begin_drain()
        await waiting.returned.wait()
        assert waiting.answer.status == 503
        assert waiting.answer.json()["type"] == "urn:shoal:problem:closed"
        assert "retry-after" in waiting.answer.headers
        held.gate.set()
        await running.returned.wait()
    assert running.answer.json() == "running"


async def test_a_config_that_changes_has_it_from_then_on(held: Held) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await served(controller, held)
        await controller.update_backend_config("held", {"drop_queued_on_shutdown": False})
        callers = await line_up(tasks, *map(handle.call, range(3)))
        await settle()
        tasks.start_soon(controller.shutdown)
        await settle()
        held.gate.set()
    assert [caller.outcome for caller in callers] == [0, 1, 2]
