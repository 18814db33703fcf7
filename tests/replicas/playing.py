"""Plays replicas in processes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from shoal.batching.current import Identity
from shoal.errors import ReplicaDied
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Replica, ReplicaOptions
from shoal.replicas.process.replica import ProcessReplica
from shoal.testing.replicas.code import Folder
from shoal.testing.replicas.stage import Played

MODULE = "replicas.process_backends"


def made(
    target: Any = f"{MODULE}:Plain",
    *init_args: Any,
    user_config: Any = None,
    number: int = 0,
    start_timeout_s: float = 15.0,
    cancel_grace_s: float = 5.0,
    **options: Any,
) -> ProcessReplica:
    """Makes a replica."""
    shared = ReplicaOptions(start_timeout_s=start_timeout_s, cancel_grace_s=cancel_grace_s)
    return ProcessReplica(
        Blueprint(
            identity=Identity("model", f"model#{number}"),
            definition=Definition(target, init_args),
            number=number,
            user_config=user_config,
            options=shared,
            placement_options=options,
        )
    )


@asynccontextmanager
async def playing(replica: Replica, *, stop: bool = True) -> AsyncGenerator[Played]:
    """Plays a replica; stops it in the end, if it has not ended."""
    played = Played(replica)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.serve)
        await played.ready.wait()
        try:
            yield played
            if stop:
                replica.stop()
                await played.ended.wait()
        finally:
            tasks.cancel_scope.cancel()


async def died(played: Played) -> None:
    """Waits until a replica has ended, which must be by its death."""
    await played.ended.wait()
    assert isinstance(played.error, ReplicaDied)


async def noted(folder: Folder, line: str, times: int = 1) -> None:
    """Waits until a worker has said something."""
    while folder.notes().count(line) < times:  # noqa: ASYNC110 - it is in another process
        await anyio.sleep(0.005)


async def gone(pid: int) -> None:
    """Waits until there is no process of this id."""
    while is_alive(pid):  # noqa: ASYNC110 - it is another process
        await anyio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Says whether a process is alive; one that only waits to be reaped is not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
