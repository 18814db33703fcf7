"""Plain generators as the code of local replicas, whose steps tests let through one by one."""

import threading
import time
from contextlib import asynccontextmanager
from itertools import count
from queue import SimpleQueue

import anyio.lowlevel

import shoal
from shoal.replicas.code.jobs import Job
from shoal.testing import settle
from time_limits import HANG_S


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


@asynccontextmanager
async def calls_of(handler, placement, **options):
    """Opens a handler as the code of a local replica; gives what makes calls of it."""
    app = shoal.App()
    app.endpoint("/steps", name="steps", placement=placement, **options)(handler)
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
