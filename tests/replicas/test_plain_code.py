"""Plain code in replicas of this process, and items passed on while its next step runs."""

import contextvars
import threading
import weakref

import anyio
import pytest

import shoal
from batching.callers import read_all
from replicas.local_replicas import calls_of, failure_of, pretend, serving
from shoal.errors import WrongResultType
from shoal.testing import settle
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


class Plain:
    """Plain code that waits until the test lets it go."""

    def __init__(self):
        self.began = anyio.Event()
        self.may_go = threading.Event()
        self.heard = []

    def hold(self, item):
        anyio.from_thread.run_sync(self.began.set)
        assert self.may_go.wait(HANG_S)
        self.heard.append("held")
        return item

    def __call__(self, item):
        self.heard.append("called")
        return item

    def hold_a_step(self, item):
        try:
            yield item
            yield self.hold(item)
        finally:
            self.heard.append("closed")

    def two_steps(self, item):
        yield item
        yield item

    def variable(self, item):
        found = VARIABLE.get()
        VARIABLE.set("by the code")
        return found

    def variables(self, item):
        yield self.variable(item)
        yield self.variable(item)


@pytest.fixture
def plain():
    code = Plain()
    yield code
    code.may_go.set()


async def all_steps(replica, method):
    return [step async for step in replica.run_stream(method, [1])]


@pytest.mark.parametrize("method", ["hold", "hold_a_step"])
async def test_a_kill_ends_the_waits_at_once_and_serve_waits_for_the_thread(
    replica_of, plain, method
):
    async with serving(replica := replica_of(plain)) as failures:
        async with anyio.create_task_group() as tasks:

            async def call(work):
                assert str(await failure_of(work)) == "embed#3 was killed: out of luck"

            is_stream = method == "hold_a_step"
            tasks.start_soon(
                call, all_steps(replica, method) if is_stream else replica.run(method, [1])
            )
            await plain.began.wait()
            replica.kill("out of luck")
        assert failures == []
        assert plain.heard == []
        plain.may_go.set()
    assert [str(failure) for failure in failures] == ["embed#3 was killed: out of luck"]
    assert plain.heard == (["held", "closed"] if is_stream else ["held"])


async def test_a_stream_between_two_steps_dies_with_its_replica(replica_of, plain):
    async with serving(replica := replica_of(plain)):
        steps = replica.run_stream("two_steps", [1])
        assert await anext(steps) == [1]
        replica.kill("out of luck")
        assert str(await failure_of(anext(steps))) == "embed#3 was killed: out of luck"


async def test_a_stream_may_be_closed_after_its_replica_has_ended(replica_of, plain):
    async with serving(replica := replica_of(plain)):
        steps = replica.run_stream("two_steps", [1])
        await anext(steps)
    await steps.aclose()


async def test_a_caller_that_is_cancelled_already_calls_nothing(replica_of, plain):
    async with serving(replica := replica_of(plain)):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await replica.run("__call__", [1])
        assert scope.cancelled_caught
        assert await replica.run("__call__", [2]) == [2]
    assert plain.heard == ["called"]


async def test_a_stream_that_is_cancelled_between_steps_is_closed(replica_of, plain):
    async with serving(replica := replica_of(plain)):
        steps = replica.run_stream("hold_a_step", [1])
        await anext(steps)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(steps)
        assert scope.cancelled_caught
        assert plain.heard == ["closed"]


async def test_code_that_returns_an_awaitable_is_told_to_be_async(replica_of):
    async def asynchronous(item):
        return item

    def forgets_to_await(item):
        return asynchronous(item)

    async with serving(replica := replica_of(forgets_to_await)):
        error = await failure_of(replica.run("__call__", [1]))
    assert isinstance(error, WrongResultType)
    assert "make it an async function" in str(error)


async def test_the_code_sees_its_callers_context_and_changes_a_copy(replica_of, plain):
    VARIABLE.set("by the caller")
    async with serving(replica := replica_of(plain)):
        for _ in range(2):
            assert await replica.run("variable", [1]) == ["by the caller"]
        # The steps of a generator share a context.
        assert await all_steps(replica, "variables") == [["by the caller"], ["by the code"]]
    assert VARIABLE.get() == "by the caller"


async def test_the_code_may_call_into_the_event_loop_or_run_its_own(replica_of, anyio_backend_name):
    async def answer():
        await anyio.lowlevel.checkpoint()
        return "done"

    def run(item):
        return [anyio.from_thread.run(answer), anyio.run(answer, backend=anyio_backend_name)]

    async with serving(replica := replica_of(run)):
        assert await replica.run("__call__", [1]) == [["done", "done"]]


async def test_an_idle_thread_holds_on_to_nothing(replica_of):
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


async def test_a_stop_iteration_of_a_thread_is_not_lost(replica_of):
    def fail(item):
        raise StopIteration

    async with serving(replica := replica_of(fail)):
        with pytest.raises(RuntimeError):
            await replica.run("__call__", [1])


@pytest.mark.parametrize("method", ["run", "run_stream"])
async def test_a_thread_that_can_t_be_started_fails_its_work_alone(replica_of, method, monkeypatch):
    @shoal.accept_batch
    def plain(items):
        return items

    @shoal.accept_batch
    def steps(items):
        yield items

    async def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    async def call():
        if method == "run":
            return await replica.run("__call__", [1])
        return await all_steps(replica, "__call__")

    async with serving(replica := replica_of(plain if method == "run" else steps)):
        with monkeypatch.context() as patched:
            patched.setattr(anyio.to_thread, "run_sync", refuse)
            assert str(await failure_of(call())) == "can't start new thread"
        assert await call() == ([1] if method == "run" else [[1]])


STEPS = 5


class Beside:
    """A plain generator, and a reader that passes its items on."""

    def __init__(self, *, waits):
        self._waits = waits
        self._begun = [threading.Event() for _ in range(STEPS + 1)]
        self.given = []
        # Each item that was passed on, and whether the next step had begun by then.
        self.taken = []

    def handler(self, items: list[str]):
        self.given = list(items)
        for nth in range(STEPS):
            self._begun[nth].set()
            yield [nth] * len(items)
        self._begun[STEPS].set()

    def take(self, item):
        has_begun = self._begun[item + 1].wait(10 if self._waits else 0)
        self.taken.append((item, has_begun))
        return True


@pytest.mark.parametrize("placement", ["task", "thread"])
@pytest.mark.parametrize(
    ("waits", "readers"), [(True, 4), (False, 4), (True, 1)], ids=["waits", "computes", "for one"]
)
async def test_items_are_passed_on_while_the_next_step_waits(
    monkeypatch, placement, waits, readers
):
    pretend(monkeypatch, waits=waits)
    beside = Beside(waits=waits)
    options = {"max_batch_size": readers, "batch_wait_timeout_s": 60}
    async with (
        calls_of(beside.handler, placement, **options) as call,
        anyio.create_task_group() as tasks,
    ):
        read = await read_all(tasks, *[call("x") for _ in range(readers - 1)])
        async with call("x") as stream:
            stream.pass_on(beside.take)
            assert [item async for item in stream] == []
    assert len(beside.given) == readers
    assert [reader.items for reader in read] == [[0, 1, 2, 3, 4]] * (readers - 1)
    assert beside.taken == [(nth, waits) for nth in range(STEPS)]


async def test_items_are_passed_on_although_another_reader_holds_the_next_step_up(monkeypatch):
    pretend(monkeypatch, waits=True)
    taken = []
    options = {"max_batch_size": 2, "batch_wait_timeout_s": 60, "stream_buffer": 2}
    async with (
        calls_of(Beside(waits=True).handler, "task", **options) as call,
        call("slow") as slow,
        call("x") as stream,
        anyio.create_task_group() as tasks,
    ):
        stream.pass_on(lambda item: taken.append(item) is None)
        [reader] = await read_all(tasks, stream)
        while len(slow.request.waiter.items) < 2:
            await anyio.lowlevel.checkpoint()
        await settle()
        assert taken == [0, 1]
        assert [item async for item in slow] == [0, 1, 2, 3, 4]
    assert taken == [0, 1, 2, 3, 4]
    assert reader.items == []
