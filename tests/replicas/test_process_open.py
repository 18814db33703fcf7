"""Open and continuous batches of code in another process, which most of the tests share.

Other files import tests of this one, to run them with replicas of another placement.
"""

import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import Caller, line_up, outcome, read
from event_loops import one_loop_for_the_file as one_loop_for_the_file
from replicas.playing import gone, made, noted, playing
from replicas.process_backends import Block, Unreadable, Unsendable
from shoal.errors import HandlerTimeout, ReplicaDied, SlowReader, Unfinished
from shoal.replicas.contract import Replica
from shoal.testing.replicas.code import Folder, Mistake
from shoal.testing.replicas.stage import Played

pytestmark = pytest.mark.real_time

CODE = "replicas.open_backends:Open"
HANG_S = 10


@pytest.fixture(scope="module")
def shared_path(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def replica_of() -> Callable[..., Replica]:
    """Makes a replica of a folder, and of options as `made` takes them."""
    return partial(made, CODE)


@pytest.fixture(scope="module")
def where() -> str:
    """What a replica calls the process of its code in errors."""
    return "the process of replica model#0"


@pytest.fixture(scope="module")
async def played(anyio_backend, replica_of, shared_path):
    """A replica whose process all tests share that leave it as it was."""
    async with playing(replica_of(str(shared_path))) as replica:
        yield replica


@pytest.fixture
def folder(shared_path):
    """The folder of the shared process, without what earlier tests left in it."""
    for file in shared_path.iterdir():
        file.unlink()
    return Folder(str(shared_path))


@pytest.fixture
def own_folder(tmp_path):
    """The folder of a process that a test has for itself, for instance to kill it."""
    return Folder(str(tmp_path))


def batcher_of(played: Played, method: str = "__call__", **options: Any) -> shoal.Batcher[Any]:
    """Makes a batcher whose open batches go to a method of a replica."""

    async def run(batch: shoal.OpenBatch[Any, Any]) -> None:
        await played.replica.run_open(method, batch)

    return shoal.Batcher(run, **{"fill": "continuous", "max_batch_size": 4, **options})


@asynccontextmanager
async def calling(
    played: Played, method: str = "__call__", **options: Any
) -> AsyncGenerator[tuple[Any, shoal.Batcher[Any]]]:
    batcher = batcher_of(played, method, **options)
    with anyio.fail_after(HANG_S):
        async with batcher as call:
            yield call, batcher


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_requests_are_answered_one_by_one_in_another_process(played, fill):
    async with calling(played, fill=fill) as (call, batcher):
        pids = {await call("pid") for _ in range(3)}
        assert len(pids) == 1
        assert os.getpid() not in pids
        found: list[Any] = []

        async def call_on(item: int) -> None:
            for _ in range(20):
                found.append(await call(item))  # noqa: PERF401 - one by one

        async with anyio.create_task_group() as tasks:
            for item in range(7):
                tasks.start_soon(call_on, item)
        assert sorted(found) == sorted([*range(7)] * 20)
        assert batcher.statistics().finished == 143


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize("buffer", [1, 16])
async def test_streams_have_their_items_in_order_and_no_more_places_than_there_are(
    played, fill, buffer
):
    options = {"fill": fill, "streams": True, "max_batch_size": 3, "stream_buffer": buffer}
    async with calling(played, "count", **options) as (call, batcher):
        lengths = [1, 2, 50, 3, 17, 40]
        async with anyio.create_task_group() as tasks:
            got: list[list[Any]] = [[] for _ in lengths]
            for length, into in zip(lengths, got, strict=True):
                tasks.start_soon(read, call(length), into)
        assert got == [list(range(1, length + 1)) for length in lengths]
        if fill == "continuous":
            steps = batcher.statistics().occupancy.steps
            assert steps.total >= 50
            assert 1 < steps.sum / steps.total <= 3


@pytest.mark.one_loop
async def test_an_open_batch_ends_with_its_reason(played):
    options = {"fill": "open", "max_batch_size": 3, "batch_wait_timeout_s": 0.05}
    async with calling(played, "closed", **options) as (call, _batcher):
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, *[call(n) for n in range(3)])
        assert [caller.outcome for caller in callers] == [(3, "full")] * 3
        assert await call(1) == (1, "timer")


@pytest.mark.one_loop
async def test_code_knows_its_requests(played):
    options = {"batch_size_fn": lambda _: 3.0, "max_batch_size": 9, "priority_levels": 2}
    async with calling(played, **options) as (call, _batcher):
        asked = call.options(metadata={"user": "ann", "list": [1]}, timeout_s=60, priority=2)
        metadata, priority, cost, left_s, is_recent, items = await asked("knows")
    assert metadata == {"user": "ann", "list": [1]}
    assert (priority, cost, is_recent, items) == (2, 3.0, True, ["knows"])
    assert 55 <= left_s <= 60


@pytest.mark.one_loop
async def test_what_can_not_be_sent_fails_its_request_alone(played, folder, where):
    async with calling(played) as (call, _batcher):
        pid = await call("pid")
        for item, says in [
            (Unsendable(), r"the item can't be sent between processes \(not me\): Unsendable"),
            (Unreadable(), "the item can't be unpickled in the process: made again"),
            ("unsendable", r"the result of .*can't be sent between processes \(not me\)"),
            ("unreadable", f"the answer of {where} can't be unpickled here"),
        ]:
            async with anyio.create_task_group() as tasks:
                callers = await line_up(tasks, call(1), call(item), call(2))
            one, failed, two = [caller.outcome for caller in callers]
            assert (one, two) == (1, 2)
            assert isinstance(failed, TypeError)
            with pytest.raises(TypeError, match=says):
                raise failed
        with pytest.raises(Mistake, match="of one"):
            await call("mistake")
        assert await call("pid") == pid
        streams = batcher_of(played, "one_task_each", streams=True)
        async with streams as stream:
            first, error = await read(stream("unsendable"))
        assert first == 1
        assert isinstance(error, TypeError)
        assert "an item of the stream" in str(error)
        assert "ended True" in folder.notes()


@pytest.mark.one_loop
async def test_large_memory_crosses_both_ways(played):
    memory = os.urandom(2**20)
    async with calling(played) as (call, _batcher):
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, *[call(Block(bytearray(memory))) for _ in range(6)])
        assert [bytes(caller.outcome.memory) == memory for caller in callers] == [True] * 6
        assert await call("x" * 2**20) == "x" * 2**20


@pytest.mark.one_loop
async def test_a_handler_that_raises_fails_its_requests_and_not_those_behind_them(played, folder):
    async with calling(played, "raises", max_batch_size=2) as (call, _batcher):
        async with anyio.create_task_group() as tasks:
            first = await line_up(tasks, call("a"))
            await noted(folder, "raises a")
            behind = await line_up(tasks, call("b"))
            folder.release("raise")
        for caller in (*first, *behind):
            assert isinstance(caller.outcome, Mistake)
        assert "open_backends.py" in first[0].outcome.__cause__.__notes__[0]
    assert folder.notes().count("raises b") == 1  # it was in a batch of its own


@pytest.mark.one_loop
async def test_requests_that_an_ended_handler_never_got_are_queued_again(played, folder):
    async with calling(played, "once") as (call, _batcher), anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call("a"))
        await noted(folder, "once ['a']")
        callers += await line_up(tasks, call("b"), call("c"))
        folder.release("once")
    assert [caller.outcome for caller in callers] == ["a", "b", "c"]
    assert folder.notes()[-1] == "once ['b', 'c']"


@pytest.mark.one_loop
async def test_what_a_handler_leaves_unanswered_fails(played):
    async with calling(played, fill="open", max_batch_size=1) as (call, _batcher):
        assert isinstance(await outcome(call("nothing")), Unfinished)


async def test_a_caller_that_leaves_frees_its_place_and_the_code_is_told(played, folder):
    options = {"streams": True, "max_batch_size": 1}
    async with calling(played, "one_task_each", **options) as (call, batcher):
        async with call("a") as stream:
            assert await anext(stream) == 0
        await noted(folder, "leaves a True")
        async with call("b") as stream:
            assert await anext(stream) == 0
            folder.release("b")
        await noted(folder, "begins b")
        assert batcher.statistics().cancelled == 2


@pytest.mark.one_loop
async def test_a_slow_reader_fails_alone_and_is_sent_no_more_than_its_buffer(played, folder):
    options = {"streams": True, "stream_buffer": 3, "slow_reader_timeout_s": 0.2}
    async with calling(played, "one_task_each", **options) as (call, _batcher):
        quick: list[Any] = []
        async with anyio.create_task_group() as tasks, call("slow") as slow:
            assert await anext(slow) == 0
            tasks.start_soon(read, call("quick"), quick)
            await noted(folder, "leaves slow True")
            await noted(folder, f"sent quick {len(quick) + 20}")
            folder.release("quick")
            rest = await read(slow)
        assert rest[:-1] == [1, 2, 3]
        assert isinstance(rest[-1], SlowReader)
        assert "sent slow 6" not in folder.notes()  # the fifth had no effect
        assert quick == list(range(len(quick)))


@pytest.mark.parametrize("how", ["SIGKILL", "kill"])
async def test_a_death_fails_each_request_by_name_after_the_items_that_it_has(
    replica_of, own_folder, how
):
    """At once: no grace period is waited for."""
    replica = replica_of(own_folder.path, cancel_grace_s=3600)
    async with (
        playing(replica, stop=False) as played,
        calling(played, "one_task_each", streams=True) as (call, _),
    ):
        [pid] = await played.run("pids", [1])
        got: list[list[Any]] = [[], []]
        async with anyio.create_task_group() as tasks:
            for name, into in zip("ab", got, strict=True):
                tasks.start_soon(read, call(name), into)
            while min(map(len, got)) < 5:  # noqa: ASYNC110 - they are in lists
                await anyio.sleep(0.005)
            if how == "kill":
                replica.kill("for the test")
            else:
                os.kill(pid, signal.SIGKILL)
        for items in got:
            *items, error = items
            assert len(items) >= 5
            assert items == list(range(len(items)))
            assert isinstance(error, ReplicaDied)
            assert error.replica == "model#0"
        [error] = await read(call("c"))
        assert isinstance(error, ReplicaDied)


@pytest.mark.one_loop
async def test_a_replica_is_checked_and_configured_while_a_batch_runs(played, folder):
    async with calling(played) as (call, _batcher):
        for config in ("new", None):
            await played.replica.reconfigure(config)
            assert await call("config") == config
        await played.replica.check_health()
        assert folder.notes() == ["health"]


@pytest.mark.one_loop
async def test_a_handler_that_does_not_end_when_its_time_is_up_is_killed(replica_of, own_folder):
    replica = replica_of(own_folder.path, cancel_grace_s=0.1)
    async with playing(replica, stop=False) as played:
        batcher = batcher_of(played, "never_ends", fill="open", handler_timeout_s=0.2)
        async with batcher as call:
            assert isinstance(await outcome(call("a")), HandlerTimeout)
            with anyio.fail_after(HANG_S):
                await played.ended.wait()
    assert "its work had not ended 0.1 s after its time was up" in str(played.error)


@pytest.mark.one_loop
async def test_a_handler_that_is_cancelled_may_still_answer(played, folder):
    async with (
        anyio.create_task_group() as tasks,
        calling(played, "cleans_up", graceful_shutdown_timeout_s=0.1) as (call, _),
    ):
        caller = Caller(call("a"))
        tasks.start_soon(caller.run)
        await noted(folder, "waits")
    assert caller.outcome == "at last"
    assert await played.run("plain_lists", [1]) == [1]


@pytest.mark.one_loop
async def test_a_handler_can_leave_its_batch_to_the_next(played):
    async with calling(played, "leaves", max_batch_size=1) as (call, _batcher):
        found = [await call(item) for item in range(5)]
    assert [item for _, item in found] == list(range(5))
    assert len({number for number, _ in found}) >= 2


@pytest.mark.one_loop
async def test_streams_can_be_ended_when_the_backend_drains(replica_of, own_folder):
    async with (
        playing(replica_of(own_folder.path)) as played,
        calling(played, "drains", streams=True) as (call, _),
        call("a") as stream,
    ):
        assert await anext(stream) == 1
        played.replica.drain()
        assert [item async for item in stream] == []


async def test_callers_that_come_and_leave_fill_no_memory_while_the_code_is_stuck(
    played, folder, monkeypatch
):
    sent: list[Any] = []
    async with calling(played, "stuck", max_batch_size=2) as (call, _batcher):
        data = played.replica._conversation.data
        send = data.send
        monkeypatch.setattr(data, "send", lambda frame: (sent.append(frame), send(frame)))
        async with anyio.create_task_group() as tasks:
            [first] = await line_up(tasks, call("a"))
            await noted(folder, "stuck a")
            for _ in range(100):
                with anyio.move_on_after(0.002):
                    await call("b")
            assert len(sent) <= 1 + 8
            [last] = await line_up(tasks, call("c"))
            folder.release("stuck")
        assert (first.outcome, last.outcome) == ("a", "c")


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("too much", "more items than a stream has room for"),
        ("no message", "it sent an invalid message"),
        ("seen too much", "it saw 1001 messages of 1"),
        ("waits twice", "it began the wait 1 twice"),
        ("no frame", "it sent an invalid frame"),
    ],
)
async def test_a_process_that_sends_rubbish_is_killed(replica_of, own_folder, how, says):
    async with playing(replica_of(own_folder.path), stop=False) as played:
        [pid] = await played.run("pids", [1])
        async with calling(played, "lies", streams=True) as (call, _batcher):
            items = await read(call(how))
            assert isinstance(items[-1], ReplicaDied)
            await played.ended.wait()
        assert says in str(played.error)
        await gone(pid)


@pytest.mark.one_loop
async def test_code_may_wait_for_a_reader_again_before_the_first_wait_has_ended(played):
    """It goes on by room that was on its way when it began to wait."""
    async with calling(played, "lies", streams=True) as (call, _batcher):
        assert await read(call("waits again")) == ["sent"]


@pytest.mark.one_loop
async def test_only_async_code_of_a_batch_takes_open_batches(played):
    binding = played.replica.open_binding("count")
    assert str(binding.signature) == "(item: int) -> int"
    for method in ("plain_lists", "plain"):
        with pytest.raises(TypeError, match=f"{method} of model#0 takes no open batch"):
            played.replica.open_binding(method)
        async with calling(played, method) as (call, _):
            assert isinstance(await outcome(call(1)), TypeError)
