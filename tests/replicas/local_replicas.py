"""Replicas in this process, what tests of them do, and plain generators as their code.

The tests let the steps of a generator through one by one.
"""

import threading
import time
from contextlib import asynccontextmanager
from itertools import count
from queue import SimpleQueue

import anyio
import pytest

from handlers import app_of
from shoal.batching.current import Identity
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.code.jobs import Job
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.testing import settle
from time_limits import HANG_S


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


class HeldSteps:
    """A plain generator.

    Args:
        steps: What it yields, or raises. A function is called with the items.

    Attributes:
        begun: For each step, and for the end, whether it has begun.
        go: For each step, whether it may end.
        closed: How often a generator was closed, or has ended.
    """

    def __init__(self, *steps):
        self._steps = steps
        self.begun = [threading.Event() for _ in range(len(steps) + 1)]
        self.go = [threading.Event() for _ in steps]
        self.closed = SimpleQueue()

    def handler(self, items: list[str]):
        try:
            for step, begun, go in zip(self._steps, self.begun, self.go, strict=False):
                begun.set()
                assert go.wait(HANG_S)
                if isinstance(step, Exception):
                    raise step
                yield step(items) if callable(step) else step
            self.begun[-1].set()
        finally:
            self.closed.put(threading.get_ident())

    def let_all_go(self):
        for go in self.go:
            go.set()


class TwoHeld:
    """Two generators by the items they are given."""

    def __init__(self):
        self.by_item = {"x": HeldSteps([0], [1], [2]), "y": HeldSteps([0])}

    def handler(self, items: list[str]):
        yield from self.by_item[items[0]].handler(items)


@asynccontextmanager
async def calls_of(handler, placement, **options):
    """Opens a handler as the code of a local replica; gives what makes calls of it."""
    app = app_of(handler, name="steps", placement=placement, **options)
    async with app.lifespan():
        batcher = app.controller.backends["steps"].method_batchers["__call__"].batcher
        yield batcher.call


def pretend(monkeypatch, *, waits):
    """Has all steps wait, or compute, for the whole of their time."""
    # Hours of computing: a machine with much to do may pause a thread between its two clocks.
    monkeypatch.setattr(time, "thread_time", count(step=0 if waits else 3600).__next__)


def decisions(monkeypatch, method):
    """Returns a queue that gets whether each job's thread has gone on by itself.

    Args:
        method: Which method of `Job` tells it: ``"next_job"``, once the thread has decided, or
            ``"answer"``, in the event loop.
    """
    decided = SimpleQueue()
    decide = getattr(Job, method)

    def told(job, *args):
        result = decide(job, *args)
        decided.put(job.following is not None)
        return result

    monkeypatch.setattr(Job, method, told)
    return decided


async def handed_out(decided):
    """Waits until the event loop has handed out a step; returns whether its thread had gone on."""
    while decided.empty():
        await anyio.lowlevel.checkpoint()
    await settle()
    return decided.get_nowait()
