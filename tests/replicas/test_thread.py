"""Replicas in a thread of their own. What all replicas promise is checked by `check_replica`."""

from __future__ import annotations

import contextvars
import sqlite3
import threading
import time
import weakref
from contextlib import aclosing, asynccontextmanager

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

import shoal
from shoal.batching.current import Identity
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.replicas.local.thread import ThreadReplica

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

HANG_S = 10
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


def replica_of(target, *args, user_config=None, **options) -> ThreadReplica:
    return ThreadReplica(
        Blueprint(
            identity=Identity("embed", "embed#3"),
            definition=Definition(target, args),
            user_config=user_config,
            options=ReplicaOptions(**options),
        )
    )


@asynccontextmanager
async def serving(replica):
    """Serves a replica; the block gets a list that holds what `serve` raises, in the end."""
    failures = []

    async def serve(*, task_status):
        try:
            await replica.serve(task_status=task_status)
        except ReplicaDied as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        await tasks.start(serve)
        yield failures
        replica.stop()


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


class Held:
    """Code that waits until the test lets it go."""

    def __init__(self):
        self.began = anyio.Event()
        self.may_go = threading.Event()
        self.heard = []

    def __call__(self, item):
        self.heard.append(item)
        return item

    def hold(self, item):
        anyio.from_thread.run_sync(self.began.set)
        assert self.may_go.wait(15)
        self.heard.append(item)
        return item


@pytest.fixture
def held():
    code = Held()
    yield code
    code.may_go.set()


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


async def test_what_belongs_to_its_thread_can_be_used():
    class Store:
        def __init__(self):
            self.connection = sqlite3.connect(":memory:")  # refuses to be used by another thread
            self.connection.execute("create table item (name)")

        def __call__(self, item):
            self.connection.execute("insert into item values (?)", (item,))
            return self.connection.execute("select count(*) from item").fetchone()[0]

        def close(self):
            self.connection.close()

    async with serving(replica := replica_of(Store)) as failures:
        assert await replica.run("__call__", ["a"]) == [1]
        assert await replica.run("__call__", ["b"]) == [2]
    assert failures == []


async def test_calls_are_served_in_their_turn(held):
    async with serving(replica := replica_of(held)), anyio.create_task_group() as tasks:
        tasks.start_soon(replica.run, "hold", [1])
        await held.began.wait()
        tasks.start_soon(replica.run, "__call__", [2])
        await anyio.wait_all_tasks_blocked()
        assert held.heard == []
        held.may_go.set()
    assert held.heard == [1, 2]


async def test_a_kill_ends_the_waits_at_once_and_begins_nothing_more(held):
    async with serving(replica := replica_of(held)) as failures:
        async with anyio.create_task_group() as tasks:

            async def call(method, item):
                with pytest.raises(ReplicaDied, match="out of luck"):
                    await replica.run(method, [item])

            tasks.start_soon(call, "hold", 1)
            await held.began.wait()
            tasks.start_soon(call, "__call__", 2)
            await anyio.wait_all_tasks_blocked()
            replica.kill("out of luck")
        assert failures == []
        held.may_go.set()
    assert held.heard == [1]
    assert [str(failure) for failure in failures] == ["embed#3 was killed: out of luck"]


async def test_a_stream_between_two_steps_dies_with_its_replica():
    def steps(item):
        yield item
        yield item

    async with serving(replica := replica_of(steps)):
        reading = replica.run_stream("__call__", [1])
        assert await anext(reading) == [1]
        replica.kill("out of luck")
        with pytest.raises(ReplicaDied, match="out of luck"):
            await anext(reading)


async def test_a_stream_may_be_closed_after_its_replica_has_ended():
    def steps(item):
        yield item
        yield item

    async with serving(replica := replica_of(steps)):
        reading = replica.run_stream("__call__", [1])
        await anext(reading)
    await reading.aclose()


async def test_a_constructor_that_hangs_is_left_behind():
    may_end = threading.Event()

    class Slow(Held):
        def __init__(self):
            assert may_end.wait(15)

    with pytest.raises(ReplicaNotStarted, match=r"was not ready within 0\.05 s"):
        await replica_of(Slow, start_timeout_s=0.05).serve(task_status=anyio.TASK_STATUS_IGNORED)
    may_end.set()


async def test_a_replica_that_is_cancelled_leaves_its_thread_behind(held):
    replica = replica_of(held)
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: replica.serve(task_status=task_status))
        async with anyio.create_task_group() as callers:

            async def call():
                with pytest.raises(ReplicaDied, match="has ended"):
                    await replica.run("hold", [1])

            callers.start_soon(call)
            await held.began.wait()
            tasks.cancel_scope.cancel()
    assert held.heard == []


async def test_async_code_is_sent_elsewhere():
    class Mixed:
        def __call__(self, item):
            return item

        async def embed(self, item):
            return item

        async def warm_up(self):
            pass

    with pytest.raises(ReplicaNotStarted) as found:
        await replica_of(Mixed).serve(task_status=anyio.TASK_STATUS_IGNORED)
    assert isinstance(found.value.__cause__, TypeError)
    assert str(found.value.__cause__) == (
        "placement='thread' is for plain code, but embed, warm_up of "
        f"{Mixed.__qualname__} is async; use placement='task'"
    )


async def test_the_code_sees_its_callers_context_and_changes_a_copy():
    def change(item):
        found = VARIABLE.get()
        VARIABLE.set("by the code")
        return found

    VARIABLE.set("by the caller")
    async with serving(replica := replica_of(change)):
        assert await replica.run("__call__", [1]) == ["by the caller"]
        assert await replica.run("__call__", [1]) == ["by the caller"]
    assert VARIABLE.get() == "by the caller"


async def test_the_code_may_run_an_event_loop_of_its_own(anyio_backend_name):
    async def answer():
        await anyio.lowlevel.checkpoint()
        return "done"

    def run(item):
        return anyio.run(answer, backend=anyio_backend_name)

    async with serving(replica := replica_of(run)):
        assert await replica.run("__call__", [1]) == ["done"]


async def test_the_code_may_call_into_the_event_loop():
    async def answer():
        await anyio.lowlevel.checkpoint()
        return "done"

    def call(item):
        return anyio.from_thread.run(answer)

    async with serving(replica := replica_of(call)):
        assert await replica.run("__call__", [1]) == ["done"]


async def test_an_idle_thread_holds_on_to_nothing():
    class Large:
        pass

    def make(item):
        return Large()

    async with serving(replica := replica_of(make)):
        [large] = await replica.run("__call__", [1])
        watch = weakref.ref(large)
        del large
        with anyio.move_on_after(5):
            while watch() is not None:  # noqa: ASYNC110 - until the thread has turned from it
                await anyio.sleep(0.001)
        assert watch() is None


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


async def test_a_thread_that_can_t_be_started_fails_its_work_alone(monkeypatch):
    @shoal.accept_batch
    def plain(items):
        return items

    async def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    async with serving(replica := replica_of(plain)):
        with monkeypatch.context() as patched:
            patched.setattr(anyio.to_thread, "run_sync", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                await replica.run("__call__", [1])
        with anyio.fail_after(HANG_S):
            assert await replica.run("__call__", [1]) == [1]
