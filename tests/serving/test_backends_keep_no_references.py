"""An idle backend keeps no references to what it has answered, and nor do its pool and replicas."""

import gc
import weakref
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import settle
from serving.scenes import deployed
from serving.watched_code import (
    Thing,
    failing,
    failing_steps,
    in_a_task,
    one,
    plain,
    plain_steps,
    plainly_failing,
    steps,
)
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


ASYNC: list[Any] = [in_a_task, one, steps, failing, failing_steps]
PLAIN: list[Any] = [plain, plain_steps, plainly_failing]
CASES: list[Any] = [
    *((code, "task", retries) for code in ASYNC + PLAIN for retries in (0, 1)),
    *((code, "thread", retries) for code in PLAIN for retries in (0, 1)),
    *(
        pytest.param(code, "process", retries, marks=pytest.mark.one_loop)
        for code, retries in [(in_a_task, 0), (steps, 1), (plain_steps, 0), (failing, 1)]
    ),
]


async def call_with(handle: Any, references: list[weakref.ref[Any]], *, streams: bool) -> None:
    thing = Thing()
    references.append(weakref.ref(thing))
    try:
        if streams:
            async with handle.stream(thing) as stream:
                del thing
                async for step in stream:
                    references.append(weakref.ref(step))
                    del step
        else:
            call = handle.call(thing)
            del thing
            references.append(weakref.ref(await call))
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("code", "placement", "retries"), CASES, ids=lambda one: getattr(one, "__name__", str(one))
)
async def test_what_was_answered_is_kept_by_nobody(code: Any, placement: str, retries: int) -> None:
    references: list[weakref.ref[Any]] = []
    streams = "steps" in code.__name__
    config: dict[str, Any] = {"placement": placement, "retries": retries}
    async with shoal.start() as client:
        handle = await deployed(client, "b", code, config=config, endpoint="e")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(lambda: call_with(handle, references, streams=streams))
        with anyio.fail_after(HANG_S):
            while any(reference() is not None for reference in references):
                await anyio.sleep(0.01)
                gc.collect()
        assert len(references) >= 6


async def test_what_was_left_is_kept_by_nobody() -> None:
    @shoal.accept_batch
    async def hanging(things: list[Any]) -> list[Any]:
        await anyio.sleep_forever()
        return things

    references: list[weakref.ref[Any]] = []
    async with shoal.start() as client:
        handle = await deployed(client, "b", hanging, endpoint="e")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(lambda: call_with(handle, references, streams=False))
            await settle()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(HANG_S):
            while any(reference() is not None for reference in references):
                await anyio.sleep(0.01)
                gc.collect()
        assert len(references) == 6
