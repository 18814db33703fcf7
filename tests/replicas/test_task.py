"""Replicas in this event loop. What all replicas promise is checked by `check_replica`."""

from __future__ import annotations

import contextvars
import logging
import threading
import types
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

import shoal
from shoal.batching.current import Identity, current_replica_tag
from shoal.errors import NoSuchName, ReplicaDied, ReplicaNotStarted, WrongResultType
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.replicas.local.task import TaskReplica
from shoal.testing import settle

pytestmark = pytest.mark.anyio

real_time = pytest.mark.real_time
HANG_S = 20


def replica_of(target, *args, user_config=None, **options) -> TaskReplica:
    return TaskReplica(
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
        except (ReplicaDied, ReplicaNotStarted) as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        await tasks.start(serve)
        yield failures
        replica.stop()


async def failure_of(call):
    """Returns what a call raises."""
    with pytest.raises(Exception) as raised:
        await call
    return raised.value


async def all_steps(replica, method):
    return [step async for step in replica.run_stream(method, [1])]


async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


class Waiting:
    """Async code that waits until it is cancelled."""

    def __init__(self):
        self.heard = []

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


# Starting


async def test_a_function_needs_no_thread_to_start():
    """In virtual time any thread would be overtaken by the time-out."""
    async with serving(replica := replica_of(double, start_timeout_s=1)):
        assert await replica.run("__call__", [1, 2]) == [2, 4]


async def test_a_start_that_takes_too_long_is_given_up_in_time():
    class Slow(Waiting):
        async def warm_up(self):
            await anyio.sleep(61)

    replica = replica_of(Slow(), start_timeout_s=60)
    began = anyio.current_time()
    error = await failure_of(replica.serve(task_status=anyio.TASK_STATUS_IGNORED))
    assert isinstance(error, ReplicaNotStarted)
    assert str(error) == "embed#3 was not ready within 60 s (start_timeout_s)"
    assert anyio.current_time() == began + 60


async def test_without_a_time_out_a_start_takes_what_it_takes():
    class Slow(Waiting):
        async def warm_up(self):
            await anyio.sleep(80_000)

    async with serving(replica := replica_of(Slow(), start_timeout_s=None)):
        assert replica.instance.description.methods


@real_time
async def test_a_constructor_that_hangs_is_left_behind():
    may_end = threading.Event()

    class Slow:  # that of an async class would hold the event loop
        def __init__(self):
            assert may_end.wait(15)

        def __call__(self, item): ...

    replica = replica_of(Slow, start_timeout_s=0.05)
    error = await failure_of(replica.serve(task_status=anyio.TASK_STATUS_IGNORED))
    may_end.set()
    assert isinstance(error, ReplicaNotStarted)
    assert "was not ready within 0.05 s" in str(error)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (TaskReplica.stop, "embed#3 was stopped"),
        (lambda replica: replica.kill("by accident"), "embed#3 was killed: by accident"),
    ],
)
@pytest.mark.parametrize("begins_first", [True, False])
async def test_a_replica_may_end_before_it_is_ready(end, why, begins_first):
    class Slow(Waiting):
        async def warm_up(self):
            await anyio.sleep_forever()

    replica = replica_of(Slow(), start_timeout_s=None)
    async with anyio.create_task_group() as tasks:

        async def serve():
            error = await failure_of(replica.serve(task_status=anyio.TASK_STATUS_IGNORED))
            assert isinstance(error, ReplicaNotStarted)
            assert str(error) == why

        if begins_first:
            tasks.start_soon(serve)
            await settle()
        end(replica)
        if not begins_first:
            tasks.start_soon(serve)


async def test_a_user_config_that_nothing_takes_is_refused():
    replica = replica_of(double, user_config={"threshold": 1})
    error = await failure_of(replica.serve(task_status=anyio.TASK_STATUS_IGNORED))
    assert isinstance(error, ReplicaNotStarted)
    assert isinstance(error.__cause__, TypeError)
    assert "has no method reconfigure(user_config)" in str(error)


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
    code = Waiting()
    async with serving(replica := replica_of(code)) as failures, anyio.create_task_group() as tasks:

        async def call():
            error = await failure_of(replica.run("__call__", [1]))
            assert isinstance(error, ReplicaDied)
            assert str(error) == "embed#3 was killed: out of luck"
            assert error.replica == "embed#3"

        tasks.start_soon(call)
        tasks.start_soon(call)
        await settle()
        replica.kill("out of luck")
    assert code.heard == ["called", "called", "left", "left"]
    [failure] = failures
    assert str(failure) == "embed#3 was killed: out of luck"


async def test_no_two_callers_share_an_error():
    errors = []
    async with serving(replica := replica_of(Waiting())), anyio.create_task_group() as tasks:

        async def call():
            errors.append(await failure_of(replica.run("__call__", [1])))

        tasks.start_soon(call)
        tasks.start_soon(call)
        await settle()
        replica.kill("out of luck")
    assert len(set(map(id, errors))) == 2


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


async def test_a_cancelled_caller_cancels_its_work_alone():
    code = Waiting()
    async with serving(replica := replica_of(code)):
        with anyio.move_on_after(1) as scope:
            await replica.run("__call__", [1])
        assert scope.cancelled_caught
        assert code.heard == ["called", "left"]
        assert await replica.run("stubborn", [4]) == [4]


async def test_a_stream_that_was_between_two_steps_dies_with_its_replica():
    code = Waiting()
    async with serving(replica := replica_of(code)):
        steps = replica.run_stream("steps", [1])
        assert await anext(steps) == [1]
        replica.kill("out of luck")
        error = await failure_of(anext(steps))
        assert isinstance(error, ReplicaDied)
        assert code.heard == ["closed"]


async def test_the_code_of_a_stream_does_not_change_its_readers_context():
    async def tags(item):
        yield current_replica_tag()
        yield current_replica_tag()

    async with serving(replica := replica_of(tags)):
        found = []
        async for step in replica.run_stream("__call__", [1]):
            found.append(step)
            with pytest.raises(RuntimeError):
                current_replica_tag()
        assert found == [["embed#3"], ["embed#3"]]


async def test_an_unknown_method_is_named():
    async with serving(replica := replica_of(double)):
        error = await failure_of(replica.run("embed", [1]))
        assert isinstance(error, NoSuchName)
        assert "no method 'embed'; it has __call__" in str(error)


async def test_a_check_of_code_without_health_is_a_checkpoint():
    async with serving(replica := replica_of(double)):
        await replica.check_health()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await replica.check_health()
        assert scope.cancelled_caught


async def test_a_new_user_config_that_nothing_takes_is_refused():
    async with serving(replica := replica_of(double)):
        assert isinstance(await failure_of(replica.reconfigure(1)), TypeError)


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


async def test_a_killed_replica_is_not_closed():
    code = Waiting()
    async with serving(replica := replica_of(code)):
        replica.kill("out of luck")
    assert code.heard == []


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
    class Slow(Waiting):
        async def close(self):
            await anyio.sleep_forever()

    async with serving(replica := replica_of(Slow())) as failures:
        replica.stop()
        await settle()
        replica.kill("it took too long")
    assert [str(failure) for failure in failures] == ["embed#3 was killed: it took too long"]


# Plain code in threads


class Plain:
    """Plain code that waits until the test lets it go."""

    def __init__(self):
        self.began = anyio.Event()
        self.may_go = threading.Event()
        self.ending = threading.Event()
        self.heard = []
        self.together = threading.Barrier(2, timeout=15)

    def hold(self, item):
        anyio.from_thread.run_sync(self.began.set)
        assert self.may_go.wait(15)
        self.heard.append("held")
        return item

    def __call__(self, item):
        self.heard.append("called")
        return item

    def meet(self, item):
        self.together.wait()
        return item

    def hold_a_step(self, item):
        try:
            yield item
            yield self.hold(item)
        finally:
            self.heard.append("closed")

    async def asynchronous(self, item):
        return item

    def forgets_to_await(self, item):
        return self.asynchronous(item)

    def variables(self, item):
        found = VARIABLE.get()
        VARIABLE.set("by the code")
        yield found
        yield VARIABLE.get()

    def two_steps(self, item):
        yield item
        yield item

    def hold_its_end(self, item):
        try:
            yield item
        finally:
            self.ending.set()
            assert self.may_go.wait(15)


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


@pytest.fixture
def plain():
    code = Plain()
    yield code
    code.may_go.set()


@real_time
async def test_plain_code_runs_in_as_many_threads_as_it_is_called():
    async with (
        serving(replica := replica_of(Plain())) as failures,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(replica.run, "meet", [1])
        tasks.start_soon(replica.run, "meet", [2])
    assert failures == []


@real_time
@pytest.mark.parametrize("method", ["hold", "hold_a_step"])
async def test_a_thread_that_is_killed_is_waited_for_by_serve_alone(plain, method):
    async with serving(replica := replica_of(plain)) as failures:
        async with anyio.create_task_group() as tasks:

            async def call():
                error = await failure_of(
                    replica.run(method, [1]) if method == "hold" else all_steps(replica, method)
                )
                assert str(error) == "embed#3 was killed: out of luck"

            tasks.start_soon(call)
            await plain.began.wait()
            replica.kill("out of luck")
        assert failures == []
        assert plain.heard == []
        plain.may_go.set()
    assert len(failures) == 1
    assert plain.heard == (["held"] if method == "hold" else ["held", "closed"])


@real_time
async def test_a_plain_stream_between_two_steps_dies_with_its_replica(plain):
    async with serving(replica := replica_of(plain)):
        steps = replica.run_stream("two_steps", [1])
        assert await anext(steps) == [1]
        replica.kill("out of luck")
        assert str(await failure_of(anext(steps))) == "embed#3 was killed: out of luck"


@real_time
async def test_a_stream_may_be_closed_after_its_replica_has_ended(plain):
    async with serving(replica := replica_of(plain)):
        steps = replica.run_stream("two_steps", [1])
        await anext(steps)
    await steps.aclose()


@real_time
async def test_what_ends_slowly_after_a_kill_is_left_behind_as_well(plain):
    replica = replica_of(plain)
    async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: replica.serve(task_status=task_status))
        steps = replica.run_stream("hold_its_end", [1])
        await anext(steps)

        async def fail(call):
            assert isinstance(await failure_of(call), ReplicaDied)

        callers.start_soon(fail, replica.run("hold", [1]))
        await plain.began.wait()
        replica.kill("out of luck")
        callers.start_soon(fail, steps.aclose())
        await anyio.to_thread.run_sync(plain.ending.wait, 15)
        tasks.cancel_scope.cancel()


@real_time
async def test_a_replica_that_is_cancelled_leaves_its_threads_behind(plain):
    replica = replica_of(plain)
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: replica.serve(task_status=task_status))
        async with anyio.create_task_group() as callers:

            async def call():
                with pytest.raises(ReplicaDied, match="has ended"):
                    await replica.run("hold", [1])

            callers.start_soon(call)
            await plain.began.wait()
            tasks.cancel_scope.cancel()
    assert plain.heard == []


@real_time
async def test_a_cancelled_caller_waits_for_its_thread(plain):
    async with serving(replica := replica_of(plain)), anyio.create_task_group() as tasks:
        left = anyio.Event()

        async def call():
            try:
                await replica.run("hold", [1])
            finally:
                left.set()

        tasks.start_soon(call)
        await plain.began.wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            assert not left.is_set()
            plain.may_go.set()
            await left.wait()
        assert plain.heard == ["held"]


@real_time
async def test_a_caller_that_is_cancelled_already_calls_nothing(plain):
    async with serving(replica := replica_of(plain)):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await replica.run("__call__", [1])
        assert scope.cancelled_caught
        assert await replica.run("__call__", [2]) == [2]
    assert plain.heard == ["called"]


@real_time
async def test_a_stream_that_is_cancelled_between_steps_is_closed(plain):
    async with serving(replica := replica_of(plain)):
        steps = replica.run_stream("hold_a_step", [1])
        await anext(steps)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(steps)
        assert scope.cancelled_caught
        assert plain.heard == ["closed"]


@real_time
async def test_plain_code_that_gives_back_an_awaitable_is_told_so(plain):
    async with serving(replica := replica_of(plain)):
        error = await failure_of(replica.run("forgets_to_await", [1]))
        assert isinstance(error, WrongResultType)
        assert "make it an async function" in str(error)


@real_time
async def test_the_steps_of_a_plain_generator_share_a_context(plain):
    VARIABLE.set("by the caller")
    async with serving(replica := replica_of(plain)):
        steps = [step async for step in replica.run_stream("variables", [1])]
    assert steps == [["by the caller"], ["by the code"]]
    assert VARIABLE.get() == "by the caller"


@real_time
@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt])
async def test_no_error_of_a_thread_is_lost(error):
    def fail(item):
        raise error("odd")

    async with serving(replica := replica_of(fail)):
        # What would end a process ends its replica.
        with pytest.raises(RuntimeError if error is StopIteration else ReplicaDied):
            await replica.run("__call__", [1])


# Open batches


async def test_an_open_batch_is_given_to_the_code_as_it_is():
    batch = object()
    found = []

    async def answer(given):
        found.append((given, current_replica_tag()))

    async with serving(replica := replica_of(answer)):
        await replica.run_open("__call__", batch)
    assert found == [(batch, "embed#3")]


async def test_the_code_of_an_open_batch_dies_with_its_replica():
    async with serving(replica := replica_of(Waiting())), anyio.create_task_group() as tasks:

        async def call():
            assert isinstance(await failure_of(replica.run_open("__call__", None)), ReplicaDied)

        tasks.start_soon(call)
        await settle()
        replica.kill("out of luck")


async def test_plain_code_takes_no_open_batch(plain):
    async with serving(replica := replica_of(plain)):
        with pytest.raises(TypeError, match="must be an async function of the batch"):
            replica.open_binding("__call__")


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


@pytest.mark.parametrize("method", ["run", "run_stream"])
async def test_a_thread_that_can_t_be_started_fails_its_work_alone(method, monkeypatch):
    @shoal.accept_batch
    def plain(items):
        return items

    @shoal.accept_batch
    def steps(items):
        yield items

    async def call():
        if method == "run":
            return await replica.run("__call__", [1])
        return await all_steps(replica, "__call__")

    async with serving(replica := replica_of(plain if method == "run" else steps)):
        with monkeypatch.context() as patched:
            patched.setattr(anyio.to_thread, "run_sync", refuse)
            assert str(await failure_of(call())) == "can't start new thread"
        assert await call() == ([1] if method == "run" else [[1]])


async def refuse(*_, **__):
    raise RuntimeError("can't start new thread")
