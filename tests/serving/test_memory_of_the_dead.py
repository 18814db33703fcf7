"""A replica that has died is freed at once, with its memory, without the garbage collector."""

import gc
import logging
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from serving.mortal_code import Mortal
from serving.scenes import deployed
from shoal.core.replicas import life
from shoal.errors import HandlerTimeout, ReplicaDied
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.replica import ProcessReplica
from shoal.replicas.process.wire.frames import FrameReader
from shoal.replicas.process.wire.shared_memory import Region
from shoal.replicas.process.worker import Worker
from shoal.serving.backends.managed import ManagedReplica
from shoal.serving.controller.controller import Controller

pytestmark = pytest.mark.real_time

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
