"""Process replicas at work; `testing/test_check_replica.py` holds them to the contract of all."""

import os
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from replicas.playing import MODULE, died, is_alive, made, noted, playing
from replicas.process_backends import (
    Async,
    Odd,
    OddAsync,
    Plain,
    Unreadable,
    Unsendable,
    odd_errors,
)
from shoal.batching.current import running_batch, setting
from shoal.core.request import Batch, DispatchReason
from shoal.errors import HandlerFailed, ReplicaNotStarted
from shoal.replicas.process import replica as process_replica
from shoal.testing.policies import make_request
from shoal.testing.replicas.stage import Played
from time_limits import HANG_S
from worker_processes import children_of

pytestmark = pytest.mark.real_time


async def test_code_is_run_in_another_process_that_ends_with_the_replica():
    async with playing(made()) as played:
        [pid] = await played.run("pid", [0])
        assert pid != os.getpid()
        assert is_alive(pid)
    assert played.error is None
    assert not is_alive(pid)


async def test_a_start_that_the_event_loop_can_not_watch_leaves_no_process(monkeypatch):
    def broken(*_, **__):
        raise OSError("no room for another watch")

    monkeypatch.setattr(process_replica, "Conversation", broken)
    before = children_of(os.getpid())
    played = Played(made())
    with anyio.fail_after(HANG_S):
        await played.serve()
    assert isinstance(played.error, ReplicaNotStarted)
    assert children_of(os.getpid()) == before


@pytest.mark.one_loop
async def test_an_error_carries_the_traceback_of_the_worker_as_a_note():
    async with playing(made()) as played:
        with pytest.raises(AttributeError) as caught:
            await played.run("sums", [1])
    [note] = caught.value.__notes__
    assert "process_backends.py" in note
    assert "handlers.py" not in note
    assert "child" not in note


@pytest.mark.parametrize("code", [Plain, Async])
async def test_a_user_config_that_nothing_takes_fails_the_start(code):
    async with playing(made(code, user_config=1)) as played:
        pass
    assert "has no method reconfigure(user_config)" in str(played.error)


@pytest.mark.parametrize("code", [Odd, OddAsync])
async def test_what_is_no_exception_fails_its_work_and_its_worker_lives_on(code):
    async def error_of(awaitable):
        with pytest.raises(HandlerFailed) as raised:
            await awaitable
        return str(raised.value)

    async with playing(made(code)) as played:
        pid = await played.run("__call__", ["well"])
        for how, kind in odd_errors().items():
            assert kind.__name__ in await error_of(played.run("__call__", [how]))
            if code is OddAsync:
                assert kind.__name__ in await error_of(played.run("waits", [how]))
            async with aclosing(played.replica.run_stream("steps", [how])) as steps:
                assert await anext(steps) == [1]
                assert kind.__name__ in await error_of(anext(steps))
            said = await error_of(played.replica.reconfigure(how))
            assert said.startswith("reconfigure() raised ")
            await played.replica.reconfigure(f"sick {how}")
            said = await error_of(played.replica.check_health())
            assert said.startswith("health() raised ")
            await played.replica.reconfigure("sick well")
            await played.replica.check_health()
        assert await played.run("__call__", ["well"]) == pid


@pytest.mark.one_loop
@pytest.mark.parametrize("code", [Plain, Async])
async def test_what_can_not_be_sent_fails_its_batch_and_no_other(code):
    async with playing(made(code)) as played:
        with pytest.raises(TypeError, match=r"item 1 of the batch .* Unsendable"):
            await played.run("echo", [1, Unsendable()])
        with pytest.raises(TypeError, match=r"can't be unpickled in the process: made again"):
            await played.run("echo", [Unreadable()])
        with pytest.raises(TypeError, match=r"result 1 of unsendable\(\)"):
            await played.run("unsendable", [1, 2])
        assert await played.run("__call__", [1]) == [2]


@pytest.mark.one_loop
async def test_a_default_is_the_same_object_for_the_code():
    async with playing(made(f"{MODULE}:Plain")) as played:
        signature = played.description.method("has_default").signature
        bound = signature.bind(1)
        bound.apply_defaults()
        assert await played.run("has_default", [tuple(bound.arguments.values())]) == [True]
        assert await played.run("has_default", [(1, 2)]) == [False]


async def test_code_knows_its_batch_and_is_told_why_metadata_is_left_out():
    async with playing(made()) as played:
        now = anyio.current_time()
        metadata = {"user": "ann", "bad": Unsendable(), "unreadable": Unreadable(), "list": [1]}
        requests = [
            make_request("a", deadline=now + 60, metadata=metadata, priority=3),
            make_request("b"),
        ]
        running_batch.set(Batch(1, DispatchReason.FULL, requests))
        first, second = await played.replica.run("batch", ["a", "b"])
        names = ["user", "bad", "unreadable", "none"]
        user, bad, unreadable, none = await played.replica.run("metadata", names)
    item, metadata, left_s, priority, cancelled = first
    assert (item, metadata, priority, cancelled) == ("a", {"user": "ann", "list": [1]}, 3, False)
    assert 50 < left_s <= 60
    assert second[:4] == ("b", {}, None, 1)
    assert user == "ann"
    assert "'bad' could not be sent to this process" in bad
    assert "'unreadable' could not be sent to this process" in unreadable
    assert none == "'none'"


@pytest.mark.parametrize(("code", "method"), [(Plain, "count"), (Async, "count_async")])
async def test_a_stream_is_made_only_a_few_steps_ahead_of_its_reader(code, method, folder):
    async with playing(made(code, folder.path)) as played:
        steps = played.replica.run_stream(method, [100])
        async with aclosing(steps):
            assert await anext(steps) == [0]
            await noted(folder, "step 3")
            assert await played.run("__call__", [1]) == [2] if code is Async else True
            assert "step 6" not in folder.notes()
            got = [await anext(steps) for _ in range(50)]
        assert got == [[step] for step in range(1, 51)]
        assert "closed the generator" in folder.notes()
        assert "step 99" not in folder.notes()


async def test_other_work_waits_for_a_plain_stream_and_is_then_done(folder):
    async with playing(made(Plain, folder.path)) as played:
        results: list[Any] = []

        async def call():
            results.append(await played.run("__call__", [1]))

        async with (
            anyio.create_task_group() as tasks,
            aclosing(played.replica.run_stream("count", [100])) as steps,
        ):
            await anext(steps)
            tasks.start_soon(call)
            assert [await anext(steps) for _ in range(20)] == [[n] for n in range(1, 21)]
            assert results == []
        assert results == [[2]]


@pytest.mark.parametrize("code", [Plain, Async])
async def test_work_that_is_cancelled_before_it_began_is_never_begun(code, folder):
    async with playing(made(code, folder.path)) as played, anyio.create_task_group() as tasks:
        tasks.start_soon(played.run, "hold", ["first"])
        await noted(folder, "holds first")
        if code is Plain:
            with anyio.move_on_after(0.05):
                await played.run("note", ["second"])
        folder.release("first")
        assert await played.run("__call__", [4]) == [8]
        assert "second" not in folder.notes()


@pytest.mark.parametrize(("code", "method"), [(Plain, "hold"), (Async, "stubborn")])
async def test_work_that_goes_on_after_its_time_was_up_is_killed(code, method, folder):
    async with playing(made(code, folder.path, cancel_grace_s=0.05)) as played:
        async with anyio.create_task_group() as tasks:
            batch = Batch(1, DispatchReason.FULL, [])
            with setting(running_batch, batch):
                tasks.start_soon(played.replica.run, method, ["a"])
            await noted(folder, "holds a")
            tasks.cancel_scope.cancel()
            batch.set_overdue()
        await died(played)
        assert "0.05 s after its time was up" in str(played.error)
        assert played.error.signal == "SIGKILL"


async def test_a_plain_generator_that_is_cancelled_is_closed_and_its_worker_lives_on(folder):
    async with playing(made(Plain, folder.path)) as played:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.steps, "count", [10**9])
            await noted(folder, "step 20")
            tasks.cancel_scope.cancel()
        assert "closed the generator" in folder.notes()
        assert await played.run("__call__", [4]) == [8]


async def test_a_worker_that_does_not_read_hangs_nobody(folder):
    replica = made(Plain, folder.path, cancel_grace_s=0.05, shared_memory_bytes=0)
    async with playing(replica) as played, anyio.create_task_group() as tasks:
        tasks.start_soon(played.run, "hold", ["a"])
        await noted(folder, "holds a")
        with anyio.move_on_after(0.05):
            await played.run("echo", [b"x" * 50_000_000])
        replica.kill("the test is over")
        tasks.cancel_scope.cancel()


async def test_a_worker_without_health_answers_a_check_while_it_works(folder):
    async with playing(made(Plain, folder.path)) as played, anyio.create_task_group() as tasks:
        tasks.start_soon(played.run, "hold", ["a"])
        await noted(folder, "holds a")
        await played.replica.check_health()
        folder.release("a")
