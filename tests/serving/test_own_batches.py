"""Code that forms batches of its own in a backend: hostile code, and sizes out of reach."""

import logging
import os
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import shoal
from serving.hostile_program import CODE, Program, operations
from serving.scenes import deployed
from serving.test_hostile_backends import (
    ENDS,
    RAISES,
    OwnRule,
    answered,
    error_of,
    neighbour,
    served,
    well_again,
)
from shoal.errors import BatcherClosed, HandlerFailed, ReplicaDied
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


class Model:
    def __init__(self, size: int | None = None) -> None:
        if size is not None:
            self.predict.set_max_batch_size(size)

    @shoal.batch(max_batch_size=64)
    async def predict(self, items: list[int]) -> list[int]:
        return items

    @shoal.batch(max_batch_size=5000, batch_size_fn=lambda item: item)
    async def weighed(self, items: list[int]) -> list[int]:
        return items

    async def __call__(self, item: int) -> int:
        if item > 1:
            self.predict.set_max_batch_size(item)
        return await self.predict(item)

    def reconfigure(self, user_config: int) -> None:
        self.predict.configure(max_batch_size=user_config)


@shoal.batch(max_batch_size=64)
async def function(items: list[int]) -> list[int]:
    return items


def warnings(caplog: Any) -> list[str]:
    found = [one.getMessage() for one in caplog.records if "can't be reached" in one.getMessage()]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    ("code", "args", "config", "sizes"),
    [
        (Model, (), {}, []),
        (Model, (), {"max_ongoing_requests": 64}, []),
        (Model, (), {"max_ongoing_requests": 8}, [(64, 8)]),
        (Model, (), {"max_concurrent_batches": None}, []),
        (Model, (101,), {}, [(101, 100)] * 2),
        (Model, (4,), {"max_ongoing_requests": 8}, []),
        (Model, (), {"max_ongoing_requests": 8, "user_config": 9}, [(64, 8), (9, 8)]),
        (function, (), {"max_ongoing_requests": 8}, [(64, 8)]),
    ],
)
async def test_a_size_that_can_not_be_reached_warns_at_start(caplog, code, args, config, sizes):
    async with Controller() as client:
        await client.create_backend("m", code, *args, config=config)
        found = warnings(caplog)
    assert len(found) == len(sizes)
    for message, (size, most) in zip(found, sizes, strict=True):
        assert f"max_batch_size={size} " in message
        assert f"max_ongoing_requests={most} " in message


async def test_a_setter_warns_of_a_size_that_can_not_be_reached(caplog: Any) -> None:
    async with Controller() as client:
        handle = await deployed(client, "m", Model, config={"max_ongoing_requests": 80})
        assert (await handle.call(80), warnings(caplog)) == (80, [])
        assert await handle.call(81) == 81
        (message,) = warnings(caplog)
        assert "Model.predict: max_batch_size=81 " in message
        assert "max_ongoing_requests=80 " in message


@pytest.mark.one_loop
async def test_a_worker_process_warns_at_start_and_in_the_setter(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "shoal")
    async with Controller() as client:
        config = {"max_ongoing_requests": 8, "placement": "process"}
        handle = await deployed(client, "m", Model, config=config)
        assert await handle.call(9) == 9
    found = warnings(caplog)
    assert all(size in " ".join(found) for size in ("max_batch_size=64", "max_batch_size=9"))


async def test_code_that_no_replica_runs_warns_of_nothing(caplog: Any) -> None:
    Model(5000)
    assert warnings(caplog) == []


class Calling:
    """Takes one request and has it batched: the shape of Ray Serve 2.x."""

    async def __call__(self, item: Any) -> Any:
        return await self.inner(item)


class AsyncInside(Calling):
    @shoal.batch
    async def inner(self, items: list[Any]) -> list[Any]:
        return [answered(item) for item in items]


class PlainInside(Calling):
    @shoal.batch
    def inner(self, items: list[Any]) -> list[Any]:
        return [answered(item) for item in items]


@shoal.batch
async def shared(items: list[Any]) -> list[Any]:
    return [answered(item) for item in items]


async def calls_shared(item: Any) -> Any:
    return await shared(item)


@pytest.mark.parametrize("code", [AsyncInside, PlainInside, calls_shared])
async def test_it_ends_its_batch_or_its_replica(code: Any) -> None:
    async with shoal.open_batchers(), served(code, "task") as (controller, handle):
        for how in (*RAISES, *RAISES):
            error = await error_of(handle.call(how))
            assert type(error) is (ReplicaDied if how in ENDS else HandlerFailed), how
            await well_again(handle)
        assert (await controller.status()).backends["b"].deaths == 2 * len(ENDS)


@pytest.mark.parametrize("how", [*RAISES])
async def test_a_rule_of_its_own_ends_its_replica(how: str) -> None:
    class Rule(OwnRule):
        raises_in = "choose"

    class Ruled(Calling):
        @shoal.batch(policy=Rule)
        async def inner(self, items: list[Any]) -> list[Any]:
            return items

    async with served(Ruled, "task") as (controller, handle):
        assert type(await error_of(handle.call(how))) is BatcherClosed
        with anyio.fail_after(HANG_S):
            while not (await controller.status()).backends["b"].deaths:
                await anyio.lowlevel.checkpoint()
        await controller.restart_backend("b")
        assert await handle.call("well") == "well"
        assert (await controller.status()).backends["b"].deaths == 1


@pytest.mark.parametrize("how", [*ENDS])
async def test_a_start_that_raises_it_there_has_failed(how: str) -> None:
    class Warm(AsyncInside):
        async def warm_up(self) -> None:
            await self.inner(how)

    async with served(AsyncInside, "task") as (controller, handle):
        error = await error_of(controller.create_backend("c", Warm, config={"placement": "task"}))
        assert isinstance(error, shoal.errors.ReplicaNotStarted)
        assert await handle.call("well") == "well"


@pytest.mark.parametrize("how", [*RAISES])
async def test_a_rule_that_breaks_in_what_is_mounted_ends_no_application(how: str) -> None:
    class Rule(OwnRule):
        raises_in = "choose"

    @shoal.batch(policy=Rule)
    async def ruled(items: list[Any]) -> list[Any]:
        return items

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(BatcherClosed):
            await ruled(how)
        await anyio.wait_all_tasks_blocked()
        assert await ruled("well") == "well"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = shoal.App()
    app.endpoint("/e", placement="task")(neighbour)
    app.mount("/m", mounted)
    async with app.lifespan():
        for _ in range(2):
            assert (await ask(app, "/m/x")).status == 204
        assert (await ask(app, "/e", "well")).json() == "well"


@shoal.batch
async def tagged(items: list[Any]) -> list[str]:
    try:
        return [shoal.current_replica_tag()] * len(items)
    except RuntimeError:
        return ["none"] * len(items)


async def calls_tagged(item: Any) -> Any:
    return await tagged(item)


async def test_a_task_of_the_servers_opens_nothing_in_a_replica() -> None:
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        tag = await tagged(1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": tag.encode()})

    async def client() -> None:
        await is_open.wait()
        assert (await ask(app, "/m/x")).body == b"none"
        done.set()

    is_open, done = anyio.Event(), anyio.Event()
    app = shoal.App()
    app.endpoint("/e", placement="task")(calls_tagged)
    app.mount("/m", mounted)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client)  # in no block's context
        async with app.lifespan():
            is_open.set()
            await done.wait()


PROGRAMS = 5
SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_HOSTILE", "1000"))

BROKEN = [("mood", "panic", "init"), ("call", "exit", ""), ("call", "well", "")]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("code", [*CODE])
@pytest.mark.parametrize(
    "programs",
    [PROGRAMS, pytest.param(SOAK_PROGRAMS, marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_hostile_code_harms_itself_alone(backend: str, code: str, programs: int) -> None:
    is_soak = programs == SOAK_PROGRAMS

    @settings(
        max_examples=programs,
        print_blob=is_soak,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @example([*BROKEN, ("verb", "scale down", "waits")])
    @example([*BROKEN, ("verb", "update", "waits")])
    @given(st.lists(operations, min_size=4, max_size=30 if is_soak else 12))
    def check(todo: list[Any]) -> None:
        anyio.run(Program(code, todo).run, backend=backend)

    check()
