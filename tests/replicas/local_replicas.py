"""Replicas in this process, and what tests of them do."""

from contextlib import asynccontextmanager

import anyio
import pytest

from shoal.batching.current import Identity
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions


def made(kind, target, *init_args, user_config=None, **options):
    """Makes a replica of one of the classes for this process."""
    return kind(
        Blueprint(
            identity=Identity("embed", "embed#3"),
            definition=Definition(target, init_args),
            user_config=user_config,
            options=ReplicaOptions(**options),
        )
    )


async def serve(replica, failures, *, task_status):
    """Serves a replica; the list gets what `serve` raises."""
    try:
        await replica.serve(task_status=task_status)
    except (ReplicaDied, ReplicaNotStarted) as error:
        failures.append(error)


@asynccontextmanager
async def serving(replica):
    """Serves a replica during the block; gives a list that gets what `serve` raises."""
    failures = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, replica, failures)
        yield failures
        replica.stop()


async def failure_of(call):
    """Returns what a call raises."""
    with pytest.raises(Exception) as raised:
        await call
    return raised.value


async def dies(work):
    """Awaits work, which the end of its replica ends."""
    with pytest.raises(ReplicaDied):
        await work


async def failed_start(replica):
    """Serves a replica that does not become ready; returns why."""
    error = await failure_of(replica.serve(task_status=anyio.TASK_STATUS_IGNORED))
    assert isinstance(error, ReplicaNotStarted)
    return error
