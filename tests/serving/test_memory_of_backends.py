"""What backends have used is freed: items, results, and replicas that have died."""

import gc
import logging
import os
import signal
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import settle
from serving.mortal_code import Mortal
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
from shoal.core.replicas import life
from shoal.errors import HandlerTimeout, ReplicaDied
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.replica import ProcessReplica
from shoal.replicas.process.wire.frames import FrameReader
from shoal.replicas.process.wire.shared_memory import Region
from shoal.replicas.process.worker import Worker
from shoal.serving.backends.managed import ManagedReplica
from shoal.serving.controller.controller import Controller
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


async def freed(references: list[weakref.ref[Any]]) -> None:
    with anyio.fail_after(HANG_S):
        while any(reference() is not None for reference in references):
            await anyio.sleep(0.01)
            gc.collect()


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
        await freed(references)
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
        await freed(references)
        assert len(references) == 6


OF_A_REPLICA = {ManagedReplica: 1, ProcessReplica: 1, Conversation: 1, Worker: 1, Region: 2}
OF_A_REPLICA |= {FrameReader: 2}  # one of each channel, with a buffer of 64 KiB


WAYS = ("exits", "hangs", "nothing", "is unhealthy", "a stream of exits", "a config of exits")
WAYS_TO_RUN_AGAIN = ("exits", "a stream of exits")


def alive() -> Counter[type]:
    return Counter(type(one) for one in gc.get_objects() if type(one) in OF_A_REPLICA)


async def dies(client: Any, handle: Any, how: str) -> None:
    way, _, item = how.rpartition(" of ")
    if way == "a stream":
        with pytest.raises((ReplicaDied, HandlerTimeout)):
            await read(handle, item)
    elif way == "a config":
        with pytest.raises(ReplicaDied):
            await client.update_backend_config("b", {"user_config": item})
    elif item == "nothing":
        os.kill(await handle.call("lives"), signal.SIGKILL)
    elif item == "is unhealthy":
        await handle.call(item)
    else:
        with pytest.raises((ReplicaDied, HandlerTimeout)):
            await handle.call(item)


async def read(handle: Any, item: str) -> None:
    async with handle.options(method_name="steps").stream(item) as steps:
        async for _ in steps:
            pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retries", "ways"), [(0, WAYS), pytest.param(1, WAYS_TO_RUN_AGAIN, marks=pytest.mark.one_loop)]
)
async def test_a_dead_replica_is_freed_without_a_collection(
    retries: int,
    ways: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    flag = tmp_path / "no replica can start"
    caplog.set_level(logging.CRITICAL, logger="shoal")  # the log of a test keeps errors
    monkeypatch.setattr(life, "LONGEST_S", 0.02)
    config = {"placement": "process", "retries": retries, "cancel_grace_s": 0.05}
    config |= {"health_check_period_s": 0.1, "handler_timeout_s": 1, "max_memory_bytes": 10**9}
    async with Controller() as client:
        handle = await deployed(client, "b", Mortal, str(flag), config=config, endpoint="e")
        pid = await handle.call("lives")
        gc.collect()
        gc.disable()
        try:
            for how in ways:
                if how == "nothing":
                    flag.touch()
                await dies(client, handle, how)
                if how == "nothing":
                    failures = client.backends["b"].supervisor.failures
                    while not failures.start_failures:  # noqa: ASYNC110 - nothing tells it
                        await anyio.sleep(0.01)
                    assert alive()[Conversation] <= 1  # that of a start, at most
                    flag.unlink()
                while (survivor := await lives(handle)) in (None, pid):  # noqa: ASYNC110 - see `lives`
                    await anyio.sleep(0.01)
                pid = survivor
                # The task of the dead one may end a moment after the new one is ready.
                with anyio.move_on_after(5):
                    while alive() != OF_A_REPLICA:  # noqa: ASYNC110 - nothing tells it
                        await anyio.sleep(0.02)
                assert alive() == OF_A_REPLICA, how
        finally:
            gc.enable()


async def lives(handle: Any) -> int | None:
    """Returns the process of the replica; None if that has just died."""
    try:
        pid: int = await handle.call("lives")
    except (ReplicaDied, HandlerTimeout):
        return None
    return pid
