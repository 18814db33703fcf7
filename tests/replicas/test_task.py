"""Replicas in this event loop, and the record of how a replica has ended."""

import logging
import math
import threading
import types
from functools import partial

import anyio
import pytest

import shoal
from handlers import double
from replicas.local_replicas import dies, failed_start, failure_of, made, serve, serving
from shoal.batching.current import current_backend_tag, current_replica_tag
from shoal.errors import ReplicaDied
from shoal.replicas.ending import Ending
from shoal.replicas.local.task import TaskReplica
from shoal.testing import settle
from time_limits import HANG_S

real_time = pytest.mark.real_time

replica_of = partial(made, TaskReplica)


class Waiting:
    """Async code that waits until it is cancelled."""

    def __init__(self, warm_up_s=0, close_s=0):
        self.heard = []
        self._warm_up_s, self._close_s = warm_up_s, close_s

    async def warm_up(self):
        await anyio.sleep(self._warm_up_s)

    async def __call__(self, item):
        self.heard.append("called")
        try:
            await anyio.sleep_forever()
        finally:
            self.heard.append("left")

    async def steps(self, item):
        try:
            yield item
            yield item + 1
        finally:
            self.heard.append("closed")

    async def stubborn(self, item):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5)
        return item

    async def complain(self, item):
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("I was cancelled")

    async def close(self):
        self.heard.append("close()")
        await anyio.sleep(self._close_s)


# Starting


async def test_a_start_that_takes_too_long_is_given_up_in_time():
    error = await failed_start(replica_of(Waiting(warm_up_s=61), start_timeout_s=60))
    assert str(error) == "embed#3 was not ready within 60 s (start_timeout_s)"
    assert anyio.current_time() == 60


async def test_without_a_time_out_a_start_takes_what_it_takes():
    replica = replica_of(Waiting(warm_up_s=80_000), start_timeout_s=None)
    async with serving(replica):
        assert replica.instance.description.methods


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (TaskReplica.stop, "embed#3 was stopped"),
        (lambda replica: replica.kill("by accident"), "embed#3 was killed: by accident"),
    ],
)
@pytest.mark.parametrize("begins_first", [True, False])
async def test_a_replica_may_end_before_it_is_ready(end, why, begins_first):
    replica = replica_of(Waiting(warm_up_s=math.inf), start_timeout_s=None)
    async with anyio.create_task_group() as tasks:

        async def fail_to_start():
            assert str(await failed_start(replica)) == why

        if begins_first:
            tasks.start_soon(fail_to_start)
            await settle()
        end(replica)
        if not begins_first:
            tasks.start_soon(fail_to_start)


async def test_a_user_config_that_nothing_takes_is_refused():
    error = await failed_start(replica_of(double, user_config={"threshold": 1}))
    assert isinstance(error.__cause__, TypeError)
    assert "has no method reconfigure(user_config)" in str(error)
    async with serving(replica := replica_of(double)):
        assert isinstance(await failure_of(replica.reconfigure(1)), TypeError)


async def test_a_cancelled_start_leaves_nothing_behind():
    class Slow(Waiting):
        async def warm_up(self):
            self.heard.append("warm_up")
            try:
                await anyio.sleep_forever()
            finally:
                self.heard.append("cancelled")

    code = Slow()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: replica_of(code).serve(task_status=anyio.TASK_STATUS_IGNORED))
        await settle()
        tasks.cancel_scope.cancel()
    assert code.heard == ["warm_up", "cancelled"]


@real_time
@pytest.mark.parametrize("turns", range(4))
async def test_a_start_may_be_cancelled_at_any_turn(turns):
    replica = replica_of(Waiting)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: replica.serve(task_status=anyio.TASK_STATUS_IGNORED))
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


# Async work


async def test_work_that_is_killed_is_cancelled_and_told_why():
    code, errors = Waiting(), []
    async with serving(replica := replica_of(code)) as failures, anyio.create_task_group() as tasks:

        async def call():
            error = await failure_of(replica.run("__call__", [1]))
            assert isinstance(error, ReplicaDied)
            assert str(error) == "embed#3 was killed: out of luck"
            assert error.replica == "embed#3"
            errors.append(error)

        tasks.start_soon(call)
        tasks.start_soon(call)
        await settle()
        replica.kill("out of luck")
    assert errors[0] is not errors[1]
    assert code.heard == ["called", "called", "left", "left"]
    [failure] = failures
    assert str(failure) == "embed#3 was killed: out of luck"


@pytest.mark.parametrize("method", ["stubborn", "complain"])
async def test_a_killed_replica_gives_no_results_and_no_errors_of_its_code(method):
    async with serving(replica := replica_of(Waiting())), anyio.create_task_group() as tasks:

        async def call():
            error = await failure_of(replica.run(method, [1]))
            assert isinstance(error, ReplicaDied)
            assert method == "stubborn" or isinstance(error.__cause__, ValueError)

        tasks.start_soon(call)
        await settle()
        replica.kill("out of luck")


async def test_a_stream_that_was_between_two_steps_dies_with_its_replica():
    code = Waiting()
    async with serving(replica := replica_of(code)):
        steps = replica.run_stream("steps", [1])
        assert await anext(steps) == [1]
        replica.kill("out of luck")
        error = await failure_of(anext(steps))
        assert isinstance(error, ReplicaDied)
        assert code.heard == ["closed"]


@pytest.mark.parametrize("ask", [current_backend_tag, current_replica_tag])
async def test_only_a_backends_code_has_tags(ask):
    with pytest.raises(RuntimeError, match=rf"^{ask.__name__}\(\) works only in a backend's code"):
        ask()


async def test_a_check_of_code_without_health_is_a_checkpoint():
    async with serving(replica := replica_of(double)):
        await replica.check_health()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await replica.check_health()
        assert scope.cancelled_caught


# The end


async def test_stop_waits_for_work_to_be_gone_before_it_closes():
    code = Waiting()
    async with serving(replica := replica_of(code)) as failures, anyio.create_task_group() as tasks:

        async def call():
            error = await failure_of(replica.run("__call__", [1]))
            assert str(error) == "embed#3 was stopped"

        tasks.start_soon(call)
        await settle()
        replica.stop()
    assert code.heard == ["called", "left", "close()"]
    assert failures == []


async def test_an_error_of_close_is_logged(caplog):
    class Broken(Waiting):
        async def close(self):
            raise ValueError("can't")

    with caplog.at_level(logging.ERROR, "shoal.replicas"):
        async with serving(replica_of(Broken())) as failures:
            pass
    assert failures == []
    assert "embed#3: close() failed" in caplog.text


async def test_a_replica_that_is_closing_can_be_killed():
    async with serving(replica := replica_of(Waiting(close_s=math.inf))) as failures:
        replica.stop()
        await settle()
        replica.kill("it took too long")
    assert [str(failure) for failure in failures] == ["embed#3 was killed: it took too long"]


@real_time
async def test_a_second_stop_leaves_a_plain_close_to_finish(caplog):
    begun, goes_on = threading.Event(), threading.Event()

    class Closing(Waiting):
        def close(self):
            begun.set()
            goes_on.wait(HANG_S)

    async with serving(replica := replica_of(Closing())) as failures:
        replica.stop()
        await anyio.to_thread.run_sync(begun.wait, HANG_S)
        replica.stop()
        goes_on.set()
    assert failures == []
    assert "close() failed" not in caplog.text


# Plain code in threads


@real_time
async def test_plain_code_runs_in_as_many_threads_as_it_is_called():
    together = threading.Barrier(2, timeout=HANG_S)

    def meet(item):
        together.wait()

    async with serving(replica := replica_of(meet)), anyio.create_task_group() as tasks:
        tasks.start_soon(replica.run, "__call__", [1])
        tasks.start_soon(replica.run, "__call__", [2])


class EndsSlowly:
    def __init__(self):
        self.working, self.closing, self.may_end = (threading.Event() for _ in range(3))

    def __call__(self, item):
        self.working.set()
        assert self.may_end.wait(HANG_S)

    def steps(self, item):
        try:
            yield item
        finally:
            self.closing.set()
            assert self.may_end.wait(HANG_S)


@real_time
async def test_what_ends_slowly_after_a_kill_is_left_behind_as_well():
    code = EndsSlowly()
    replica = replica_of(code)
    async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
        await tasks.start(serve, replica, [])
        steps = replica.run_stream("steps", [1])
        await anext(steps)
        callers.start_soon(dies, replica.run("__call__", [1]))
        await anyio.to_thread.run_sync(code.working.wait, 15)
        replica.kill("out of luck")
        callers.start_soon(dies, steps.aclose())
        await anyio.to_thread.run_sync(code.closing.wait, 15)
        tasks.cancel_scope.cancel()
    code.may_end.set()


async def test_the_code_of_an_open_batch_dies_with_its_replica():
    async with serving(replica := replica_of(Waiting())), anyio.create_task_group() as tasks:
        tasks.start_soon(dies, replica.run_open("__call__", None))
        await settle()
        replica.kill("out of luck")


# The threads of plain code


@real_time
async def test_the_next_batch_runs_in_the_same_thread():
    threads = []

    @shoal.accept_batch
    def note(items):
        threads.append(threading.get_ident())
        return items

    async with serving(replica := replica_of(note)):
        for number in range(3):
            assert await replica.run("__call__", [number]) == [number]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@types.coroutine
def stopping_at_the_first_wait(coroutine, look):
    """Runs a coroutine, and calls a function when it waits for the first time."""
    waits_for = coroutine.send(None)
    look()
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, sent)
        try:
            waits_for = step()
        except StopIteration as stop:
            return stop.value


@real_time
async def test_a_batch_begins_before_the_event_loop_goes_on():
    has_begun = threading.Event()

    @shoal.accept_batch
    def begin(items):
        has_begun.set()
        return items

    def look():
        assert has_begun.wait(HANG_S)

    async with serving(replica := replica_of(begin)):
        await replica.run("__call__", [0])
        has_begun.clear()
        call = replica.run("__call__", [1])
        assert await stopping_at_the_first_wait(call, look) == [1]


@real_time
async def test_few_threads_are_kept():
    begun = anyio.Semaphore(0)
    may_end = threading.Event()

    @shoal.accept_batch
    def wait(items):
        anyio.from_thread.run_sync(begun.release)
        may_end.wait()
        return items

    async with serving(replica := replica_of(wait)):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(replica.run, "__call__", [number])
            for _ in range(20):
                await begun.acquire()
            may_end.set()
        assert len(replica._idle) == 8
    assert not replica._idle


@pytest.fixture
def ending():
    return Ending("embed#3")


def test_the_first_reason_stands(ending):
    ending.die("died: its node is gone", OSError("no route"))
    ending.die("was killed: its health checks failed", ValueError())
    ending.stop()
    assert str(ending.death()) == "embed#3 died: its node is gone"
    assert isinstance(ending.cause, OSError)


def test_each_death_is_an_error_of_its_own_with_the_cause(ending):
    cause = OSError("no route")
    ending.die("died", cause)
    first, second = ending.death(), ending.death()
    assert first is not second
    assert first.__cause__ is second.__cause__ is cause
    assert first.replica == "embed#3"


def test_a_stop_is_no_death_and_a_kill_after_it_is(ending):
    ending.stop()
    ending.die_unasked("exited with code 0")
    assert ending.begun.is_set()
    assert (ending.how, str(ending)) == (None, "was stopped")
    ending.die("was killed: it took too long")
    assert str(ending) == "was killed: it took too long"
