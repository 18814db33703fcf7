"""A plain generator goes on with its next step by itself, where that changes nothing but the time.

Tests hold the event loop up while they look at the thread, so what it does it does by itself.
"""

import threading
from contextlib import asynccontextmanager
from weakref import WeakSet

import anyio
import pytest

import shoal
from batching.callers import read_all
from replicas.local_replicas import (
    HeldSteps,
    TwoHeld,
    calls_of,
    decisions,
    dies,
    handed_out,
    pretend,
    serving,
)
from shoal.batching.current import setting
from shoal.batching.running.stream import Stepping, running_steps
from shoal.errors import ReplicaDied, WrongBatchSize
from shoal.replicas.threads import inner_calls
from shoal.testing import settle
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


@pytest.fixture(params=["task", "thread"])
def placement(request):
    return request.param


@pytest.fixture(autouse=True)
def waiting_steps(monkeypatch):
    pretend(monkeypatch, waits=True)


async def first_of(held, stream):
    """Returns the first item, once the second step has begun."""
    held.go[0].set()
    item = await anext(stream)
    assert held.begun[1].wait(HANG_S)
    return item


async def test_it_goes_on_by_one_step_and_not_more(monkeypatch, placement):
    decided = decisions(monkeypatch, "next_job")
    held = HeldSteps([0], [1], [2], [3])
    async with calls_of(held.handler, placement) as call, call("x") as stream:
        assert await first_of(held, stream) == 0
        assert not decided.get(timeout=HANG_S)
        held.let_all_go()
        assert decided.get(timeout=HANG_S)
        assert not decided.get(timeout=HANG_S)
        assert not held.begun[3].is_set()
        assert [item async for item in stream] == [1, 2, 3]


async def test_a_step_that_computes_is_handed_out_before_the_next_one(monkeypatch, placement):
    decided = decisions(monkeypatch, "next_job")
    pretend(monkeypatch, waits=False)
    held = HeldSteps([0], [1], [2])
    async with calls_of(held.handler, placement) as call, call("x") as stream:
        held.let_all_go()
        assert [item async for item in stream] == [0, 1, 2]
    assert not any(decided.get_nowait() for _ in range(decided.qsize()))


SKIP, END = shoal.SKIP, shoal.END


@pytest.mark.parametrize(
    ("capacity", "steps", "goes_on"),
    [
        (2, [["a"], ["b"], ["c"]], [False]),
        (3, [["a"], ["b"], ["c"]], [True, False]),
        (4, [["a"], ["b"], ["c"], ["d"]], [True, True, False]),
        (3, [["a"], ["b"], [SKIP], ["c"]], [True, False, False]),
    ],
)
async def test_it_goes_on_only_if_no_reader_can_hold_it_up(monkeypatch, capacity, steps, goes_on):
    decided = decisions(monkeypatch, "answer")
    held = HeldSteps(*steps)
    options = {"stream_buffer": capacity}
    async with calls_of(held.handler, "thread", **options) as call, call("x") as stream:
        for go, expected in zip(held.go, [False, *goes_on], strict=False):
            go.set()
            assert await handed_out(decided) is expected
        held.let_all_go()
        wanted = [item for [item] in steps if item is not SKIP]
        assert [item async for item in stream] == wanted


async def test_a_generator_whose_streams_all_end_is_not_asked_again(monkeypatch, placement):
    decided = decisions(monkeypatch, "answer")
    held = HeldSteps([0, 0], [1, END], [2, SKIP], [END, SKIP])
    options = {"max_batch_size": 2, "batch_wait_timeout_s": 60}
    async with (
        calls_of(held.handler, placement, **options) as call,
        anyio.create_task_group() as tasks,
    ):
        readers = await read_all(tasks, call("x"), call("y"))
        for go, expected in zip(held.go, [False, True, True, False], strict=True):
            go.set()
            assert await handed_out(decided) is expected
    assert [reader.items for reader in readers] == [[0, 1, 2], [0]]
    assert held.closed.qsize() == 1
    assert not held.begun[-1].is_set()


@pytest.mark.parametrize("is_ahead", [False, True])
async def test_a_generator_whose_readers_have_left_is_not_asked_again(placement, is_ahead):
    held = HeldSteps([0], [1], [2], [3])
    running = 2 if is_ahead else 1
    async with calls_of(held.handler, placement) as call:
        async with anyio.create_task_group() as tasks:
            [reader] = await read_all(tasks, call("x"))
            held.go[0].set()
            while not held.begun[1].is_set() or not reader.items:
                await anyio.lowlevel.checkpoint()
            if is_ahead:
                held.go[1].set()
                assert held.begun[2].wait(HANG_S)
            reader.leave()
        held.go[running].set()
    assert not held.begun[running + 1].is_set()
    assert held.closed.qsize() == 1


async def test_a_list_that_is_changed_in_the_next_step_was_copied(placement):
    slots = [0]

    def change(_items):
        slots[0] += 1
        return slots

    held = HeldSteps(change, change, change, change)
    async with calls_of(held.handler, placement) as call, call("x") as stream:
        assert await first_of(held, stream) == 1
        held.go[1].set()
        assert held.begun[2].wait(HANG_S)
        held.go[2].set()
        assert [await anext(stream), await anext(stream)] == [2, 3]
        held.let_all_go()
        assert [item async for item in stream] == [4]


async def test_the_steps_from_which_it_went_on_are_not_kept(placement):
    alive = WeakSet()

    class Value:
        """An item that can be watched."""

    def give(_items):
        value = Value()
        alive.add(value)
        return [value]

    held = HeldSteps(*[give] * 7)
    async with calls_of(held.handler, placement) as call, call("x") as stream:
        await first_of(held, stream)
        for step in range(1, 6):
            held.go[step].set()
            assert held.begun[step + 1].wait(HANG_S)
            await anext(stream)
        await settle()
        assert len(alive) < 3
        held.let_all_go()


async def test_an_error_in_a_step_that_went_ahead_comes_after_the_items_before_it(placement):
    held = HeldSteps([0], [1], ValueError("broken"))
    async with calls_of(held.handler, placement) as call, call("x") as stream:
        assert await first_of(held, stream) == 0
        held.let_all_go()
        assert held.begun[2].wait(HANG_S)
        assert await anext(stream) == 1
        with pytest.raises(ValueError, match="broken"):
            await anext(stream)
    assert held.closed.qsize() == 1


async def test_after_a_step_of_the_wrong_size_there_is_none(placement):
    held = HeldSteps([0], [1, 1], [2])
    async with calls_of(held.handler, placement) as call, call("x") as stream:
        assert await first_of(held, stream) == 0
        held.let_all_go()
        with pytest.raises(WrongBatchSize):
            await anext(stream)
    assert held.closed.qsize() == 1
    assert not held.begun[2].is_set()


async def test_a_reader_that_joined_holds_up_no_step_that_has_nothing_for_it(placement):
    held = HeldSteps([0, SKIP], [1, SKIP], [2, SKIP], [SKIP, 0], [SKIP, 1])
    options = {"dedupe": True, "stream_buffer": 2, "max_batch_size": 2, "batch_wait_timeout_s": 60}
    async with calls_of(held.handler, placement, **options) as call, call("x") as x, call("y") as y:
        for step in range(3):
            held.go[step].set()
            assert await anext(x) == step
        async with call("x") as joined:
            held.let_all_go()
            with anyio.fail_after(HANG_S):
                assert [item async for item in y] == [0, 1]
            assert [item async for item in joined] == [0, 1, 2]


async def test_a_thread_that_has_other_work_does_that_first():
    two = TwoHeld()
    x, y = two.by_item.values()
    options = {"max_batch_size": 1, "max_concurrent_batches": 2}
    async with calls_of(two.handler, "thread", **options) as call, call("x") as stream:
        assert await first_of(x, stream) == 0
        async with call("y") as other:
            await settle()
            x.go[1].set()
            assert y.begun[0].wait(HANG_S)
            assert not x.begun[2].is_set()
            x.let_all_go()
            y.let_all_go()
            assert [item async for item in stream] == [1, 2]
            assert [item async for item in other] == [0]


async def test_a_thread_that_goes_on_is_given_no_other_work():
    two = TwoHeld()
    x, y = two.by_item.values()
    options = {"max_batch_size": 1, "max_concurrent_batches": 2}
    async with calls_of(two.handler, "task", **options) as call, call("x") as stream:
        assert await first_of(x, stream) == 0
        x.go[1].set()
        assert x.begun[2].wait(HANG_S)
        assert await anext(stream) == 1
        y.let_all_go()
        async with call("y") as other:
            assert [item async for item in other] == [0]
        x.let_all_go()
        assert [item async for item in stream] == [2]


@pytest.fixture
def stepping():
    """Steps of which each may go ahead of the last one, once it is said that there is room."""
    stepping = Stepping(wants_more=lambda slots: True)
    stepping.has_room = True
    return stepping


@asynccontextmanager
async def steps_of(replica, stepping):
    """Serves a replica; gives the steps of its code, and a list that gets how it ended."""
    with anyio.fail_after(HANG_S), setting(running_steps, stepping):
        async with serving(replica) as failures:
            yield replica.run_stream("__call__", ["x"]), failures


async def close(steps, *, task_status):
    closing = ["began"]
    task_status.started(closing)
    await steps.aclose()
    closing.append("ended")


async def test_a_step_that_went_ahead_is_waited_for_before_the_generator_is_closed(
    replica_of, stepping
):
    held = HeldSteps([0], [1], [2])
    async with steps_of(replica_of(held.handler), stepping) as (steps, _):
        assert await first_of(held, steps) == [0]
        stepping.has_room = True
        async with anyio.create_task_group() as tasks:
            closing = await tasks.start(close, steps)
            await settle()
            assert closing == ["began"]
            held.go[1].set()
        assert closing == ["began", "ended"]
    assert held.closed.qsize() == 1
    assert not held.begun[2].is_set()


async def test_a_call_that_a_step_ahead_waits_for_ends_when_the_generator_is_closed(
    replica_of, stepping
):
    waiting, given_up = threading.Event(), threading.Event()

    def call(_items):
        with inner_calls.get().waiting(given_up.set):
            waiting.set()
            assert given_up.wait(HANG_S)
        return [1]

    held = HeldSteps([0], call)
    held.let_all_go()
    async with steps_of(replica_of(held.handler), stepping) as (steps, _):
        assert await anext(steps) == [0]
        assert waiting.wait(HANG_S)
        await steps.aclose()
        assert given_up.is_set()
    assert held.closed.qsize() == 1


async def test_calls_of_a_generator_that_is_closed_go_on_if_its_step_ahead_has_ended(
    monkeypatch, replica_of, stepping
):
    decided = decisions(monkeypatch, "answer")
    cancelled = []

    def handler(items: list[str]):
        try:
            yield [0]
            yield [1]
        finally:
            cancelled.append(inner_calls.get().is_cancelled)

    async with steps_of(replica_of(handler), stepping) as (steps, _):
        assert await anext(steps) == [0]
        for _ in range(2):
            await handed_out(decided)
        await steps.aclose()
    assert cancelled == [False]


async def test_a_generator_that_is_cancelled_does_not_go_on(replica_of, stepping):
    held = HeldSteps([0], [1], [2])
    async with (
        steps_of(replica_of(held.handler), stepping) as (steps, _),
        anyio.create_task_group() as tasks,
    ):
        scope = anyio.CancelScope()

        async def read():
            with scope:
                await anext(steps)

        tasks.start_soon(read)
        await settle()
        assert held.begun[0].wait(HANG_S)
        scope.cancel()
        await settle()
        held.go[0].set()
    assert held.closed.qsize() == 1
    assert not held.begun[1].is_set()


async def test_a_step_that_is_there_already_is_a_checkpoint(monkeypatch, replica_of, stepping):
    decided = decisions(monkeypatch, "answer")
    held = HeldSteps([0], [1], [2])
    async with steps_of(replica_of(held.handler), stepping) as (steps, _):
        held.let_all_go()
        assert await anext(steps) == [0]
        for _ in range(2):
            await handed_out(decided)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(steps)
        assert scope.cancelled_caught


async def test_a_kill_ends_a_step_that_went_ahead(replica_of, stepping):
    held = HeldSteps([0], [1], [2], [3])
    replica = replica_of(held.handler)
    async with steps_of(replica, stepping) as (steps, failures):
        assert await first_of(held, steps) == [0]
        stepping.has_room = True
        replica.kill("out of luck")
        held.go[1].set()
        with pytest.raises(ReplicaDied):
            await anext(steps)
    assert len(failures) == 1
    assert held.closed.qsize() == 1
    assert not held.begun[2].is_set()


async def test_a_kill_after_the_last_step_has_ended_closes_its_generator(
    monkeypatch, replica_of, stepping
):
    decided = decisions(monkeypatch, "next_job")
    stepping.has_room = False
    held = HeldSteps([0], [1])
    replica = replica_of(held.handler)
    async with steps_of(replica, stepping) as (steps, failures), anyio.create_task_group() as tasks:
        tasks.start_soon(dies, anext(steps))
        await settle()
        held.go[0].set()
        assert not decided.get(timeout=HANG_S)
        replica.kill("out of luck")
    assert len(failures) == 1
    assert held.closed.get_nowait() != threading.get_ident()


async def test_what_an_abandoned_thread_yields_does_not_tell_the_next_replica_to_go_on(
    monkeypatch, replica_of
):
    decided = decisions(monkeypatch, "next_job")
    stepping = Stepping(wants_more=lambda slots: slots == ["old"])
    old, new = HeldSteps(["old"]), HeldSteps([0], [1], [2])
    replica = replica_of(old.handler)
    async with steps_of(replica, stepping) as (steps, _), anyio.create_task_group() as tasks:
        tasks.start_soon(dies, anext(steps))
        await settle()
        assert old.begun[0].wait(HANG_S)
        replica.kill("out of luck")
        async with steps_of(replica_of(new.handler), stepping) as (again, _):
            new.go[0].set()
            assert await anext(again) == [0]
            assert not decided.get(timeout=HANG_S)
            stepping.has_room = True
            async with anyio.create_task_group() as readers:
                readers.start_soon(anext, again)
                await settle()
                assert new.begun[1].wait(HANG_S)
                old.go[0].set()
                assert not decided.get(timeout=HANG_S)
                new.go[1].set()
                assert not decided.get(timeout=HANG_S)
            await again.aclose()
    assert (old.closed.qsize(), new.closed.qsize()) == (1, 1)
    assert not new.begun[2].is_set()
