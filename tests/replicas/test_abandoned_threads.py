"""Threads whose replica was given up while plain code ran in them."""

import threading

import anyio
import pytest

from replicas.local_replicas import dies, made, serve
from replicas.plain_generators import HANG_S, HeldSteps, decisions, handed_out
from shoal.replicas.code.jobs import Job
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.testing import settle

pytestmark = pytest.mark.real_time


async def give_up_in_a_step(kind, held):
    """Cancels what serves a replica while a step of its generator runs."""
    replica = made(kind, held.handler)
    async with anyio.create_task_group() as readers, anyio.create_task_group() as tasks:
        await tasks.start(serve, replica, [])
        readers.start_soon(dies, anext(replica.run_stream("__call__", ["x"])))
        await settle()
        assert held.begun[0].wait(HANG_S)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [TaskReplica, ThreadReplica])
async def test_its_generator_is_closed_there_when_the_step_has_ended(kind):
    held = HeldSteps([0], [1])
    await give_up_in_a_step(kind, held)
    held.go[0].set()
    with anyio.fail_after(HANG_S):
        while held.closed.empty():
            await anyio.lowlevel.checkpoint()
        await settle()
    assert held.closed.get_nowait() != threading.get_ident()
    assert not held.begun[1].is_set()


@pytest.mark.parametrize("kind", [TaskReplica, ThreadReplica])
async def test_a_generator_that_nothing_can_close_any_more_ends_nothing_else(monkeypatch, kind):
    monkeypatch.setattr("shoal.replicas.local.task._MOST_IDLE", 0)
    answered = decisions(monkeypatch, "answer")
    run = Job.run

    def run_without_noticing(job):  # that it is given up
        undo, job.undo = job.undo, None
        try:
            return run(job)
        finally:
            job.undo = undo

    monkeypatch.setattr(Job, "run", run_without_noticing)
    held = HeldSteps([0], [1])
    await give_up_in_a_step(kind, held)
    held.go[0].set()
    with anyio.fail_after(HANG_S):
        await handed_out(answered)


@pytest.mark.parametrize("kind", [TaskReplica, ThreadReplica])
def test_the_thread_ends_when_its_step_has_ended_after_the_event_loop(kind):
    # On asyncio, where a program does not end before its worker threads have.
    held = HeldSteps([0])
    before = set(threading.enumerate())
    anyio.run(give_up_in_a_step, kind, held, backend="asyncio")
    [thread] = set(threading.enumerate()) - before
    held.go[0].set()
    thread.join(HANG_S)
    assert not thread.is_alive()


async def test_a_generator_that_was_to_be_closed_after_other_work_is_closed_nevertheless():
    held = {"x": HeldSteps([0], [1]), "y": HeldSteps([0])}

    def handler(items: list[str]):
        yield from held[items[0]].handler(items)

    x, y = held.values()
    replica = made(ThreadReplica, handler)
    x_steps, y_steps = (replica.run_stream("__call__", [item]) for item in held)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve, replica, [])
            x.go[0].set()
            assert await anext(x_steps) == [0]
            tasks.start_soon(dies, anext(y_steps))
            await settle()
            assert y.begun[0].wait(HANG_S)
            tasks.start_soon(dies, x_steps.aclose())
            await settle()
            replica.kill("out of luck")
            y.go[0].set()
    assert x.closed.get_nowait() == y.closed.get_nowait() != threading.get_ident()
