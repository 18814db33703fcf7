"""Replicas in a thread of their own. What all replicas promise is checked by `check_replica`."""

import threading
import time
from contextlib import aclosing
from functools import partial

import anyio
import pytest

import shoal
from replicas.local_replicas import failed_start, made, serving
from shoal.errors import ReplicaDied
from shoal.replicas.local.thread import ThreadReplica
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
        assert self.may_go.wait(HANG_S)
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
