"""Replicas in a thread of their own, and threads whose replica was given up."""

import threading
import time
from contextlib import aclosing
from functools import partial

import anyio
import pytest

import shoal
from replicas.local_replicas import (
    HeldSteps,
    TwoHeld,
    decisions,
    dies,
    failed_start,
    handed_out,
    made,
    serve,
    serving,
)
from replicas.test_plain_code import plain as plain
from shoal.errors import ReplicaDied
from shoal.replicas.code.jobs import Job
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.testing import settle
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

replica_of = partial(made, ThreadReplica)


class Threads:
    """Notes in which thread everything runs."""

    def __init__(self, heard):
        self.heard = heard
        self._note("constructor")

    def _note(self, what):
        self.heard.append((what, threading.get_ident()))

    def __call__(self, item):
        self._note("call")
        return item

    def steps(self, item):
        try:
            self._note("step")
            yield item
            yield item
        finally:
            self._note("closed")

    def reconfigure(self, user_config):
        self._note("reconfigure")

    def warm_up(self):
        self._note("warm_up")

    def health(self):
        self._note("health")

    def close(self):
        self._note("close")


async def test_all_but_health_runs_in_one_thread():
    heard = []
    async with serving(replica := replica_of(Threads, heard, user_config="first")):
        for _ in range(3):
            await replica.run("__call__", [1])
        steps = replica.run_stream("steps", [1])
        await anext(steps)
        await steps.aclose()
        await replica.reconfigure("second")
        await replica.check_health()
    health = [thread for what, thread in heard if what == "health"]
    others = {thread for what, thread in heard if what != "health"}
    assert [what for what, _ in heard] == [
        *("constructor", "reconfigure", "warm_up", "call", "call", "call"),
        *("step", "closed", "reconfigure", "health", "close"),
    ]
    assert len(others) == 1
    assert not others & {*health, threading.get_ident()}


async def test_a_kill_ends_the_waits_at_once_and_begins_nothing_more(plain):
    async with serving(replica := replica_of(plain)) as failures:
        async with anyio.create_task_group() as tasks:

            async def call(method, item):
                with pytest.raises(ReplicaDied, match="out of luck"):
                    await replica.run(method, [item])

            tasks.start_soon(call, "hold", 1)
            await plain.began.wait()
            tasks.start_soon(call, "__call__", 2)
            await anyio.wait_all_tasks_blocked()
            replica.kill("out of luck")
        assert failures == []
        plain.may_go.set()
    assert plain.heard == ["held"]
    assert [str(failure) for failure in failures] == ["embed#3 was killed: out of luck"]


async def test_async_code_is_sent_elsewhere():
    class Mixed:
        def __call__(self, item):
            return item

        async def embed(self, item):
            return item

        async def warm_up(self):
            pass

    error = await failed_start(replica_of(Mixed))
    assert isinstance(error.__cause__, TypeError)
    assert str(error.__cause__) == (
        "placement='thread' is for plain code, but embed, warm_up of "
        f"{Mixed.__qualname__} is async; use placement='task'"
    )


async def test_an_item_does_not_wait_for_another_batch_in_the_thread(monkeypatch):
    """The next step does, since there is one thread."""
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)  # so each step seems to have waited
    released = threading.Event()

    class Code:
        def __call__(self, item):
            released.wait(HANG_S)
            return item

        def steps(self, item):
            yield "first"
            yield "second"

    passed_on = []
    first_came, has_ended = anyio.Event(), anyio.Event()

    def take(item):
        passed_on.append(item)
        first_came.set()
        return True

    async with serving(replica := replica_of(Code)):

        async def steps(items):
            async with aclosing(replica.run_stream("steps", items)) as each:
                async for step in each:
                    if not passed_on:  # now the other call is in the thread before the next step
                        tasks.start_soon(replica.run, "__call__", [1])
                        await anyio.wait_all_tasks_blocked()
                    yield step

        async with (
            shoal.Batcher(steps) as call,
            anyio.create_task_group() as tasks,
            call("x") as stream,
        ):
            stream.pass_on(take)
            tasks.start_soon(read_to_its_end, stream, has_ended)
            with anyio.fail_after(HANG_S / 2):
                await first_came.wait()
            assert not released.is_set()
            released.set()
            await has_ended.wait()
    assert passed_on == ["first", "second"]


async def read_to_its_end(stream, has_ended):
    assert [item async for item in stream] == []
    has_ended.set()


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
    two = TwoHeld()
    x, y = two.by_item.values()
    replica = replica_of(two.handler)
    x_steps, y_steps = (replica.run_stream("__call__", [item]) for item in two.by_item)
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
