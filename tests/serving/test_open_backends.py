"""Open batches on replicas: no request is lost when a replica goes, and none is refused."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import PENDING, outcome
from serving.scenes import deployed, under_way
from shoal.replicas.local.task import TaskReplica
from shoal.serving.controller.controller import Controller

# Functions need no thread, and virtual time holds for them.


async def each_takes_a_second(batch: shoal.OpenBatch[int, int]) -> None:
    async def answer(request: Any) -> None:
        await anyio.sleep(1)
        request.finish(request.item)

    async with anyio.create_task_group() as tasks:
        async for request in batch:
            tasks.start_soon(answer, request)


@pytest.mark.parametrize("verb", ["restart", "scale"])
async def test_no_request_is_lost_when_replicas_of_a_continuous_batch_go(verb: str) -> None:
    config = {"fill": "continuous", "num_replicas": 2, "max_batch_size": 4}
    found: list[Any] = []

    async with Controller() as controller:
        handle = await deployed(controller, "b", each_takes_a_second, config=config, endpoint="e")

        async def call_on(item: int) -> None:
            for _ in range(50):
                found.append(await outcome(handle.call(item)))  # noqa: PERF401 - one by one

        async with anyio.create_task_group() as tasks:
            for item in range(6):
                tasks.start_soon(call_on, item)
            await anyio.sleep(10.5)
            begun = anyio.current_time()
            if verb == "restart":
                await controller.restart_backend("b")
            else:
                await controller.scale_backend("b", 1)
            assert anyio.current_time() - begun < 10
    assert sorted(found) == sorted([*range(6)] * 50)


async def test_another_method_waits_for_a_replica_that_is_started_again() -> None:
    class Code:
        async def warm_up(self) -> None:
            await gate.wait()

        async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:
            async for request in batch:
                request.finish(request.item)

        async def other(self, batch: shoal.OpenBatch[int, int]) -> None:
            async for request in batch:
                request.finish(-request.item)

    def placed(blueprint: Any) -> TaskReplica:
        made.append(TaskReplica(blueprint))
        return made[-1]

    placed.takes_open_batches = True  # type: ignore[attr-defined]
    made: list[TaskReplica] = []
    gate = anyio.Event()
    gate.set()
    async with Controller() as controller:
        handle = await deployed(
            controller, "b", Code(), config={"fill": "open", "placement": placed}, endpoint="e"
        )
        assert await handle.call(1) == 1
        gate = anyio.Event()
        made[0].kill("for the test")
        await anyio.sleep(5)
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, handle.options(method_name="other").call(2))
            assert caller.outcome is PENDING
            gate.set()
        assert caller.outcome == -2


async def test_code_with_two_methods_of_continuous_batches_is_refused() -> None:
    class Code:
        async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:
            raise AssertionError

        async def other(self, batch: shoal.OpenBatch[int, int]) -> None:
            raise AssertionError

    async with Controller() as controller:
        with pytest.raises(
            TypeError, match=r"__call__, other take open batches.*backend of its own"
        ):
            await deployed(controller, "b", Code(), config={"fill": "continuous"}, endpoint="e")
