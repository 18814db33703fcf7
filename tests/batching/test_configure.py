"""Live changes: together, checked as a whole, from the next batch on.

They may change how batches are formed, while requests wait that came under other options.
"""

import threading
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import PENDING, launch, line_up, outcome, outcomes, read_all
from batching.scenes import Held, Recorder, Refusing, opening, plugged, settle
from shoal import QueuePolicy, RetryLater


async def test_options_change_together_from_the_next_batch_on(held: Held) -> None:
    async with opening(held, max_batch_size=2, batch_wait_timeout_s=None) as (batcher, call, tasks):
        await launch(tasks, *map(call, range(2)))
        batcher.configure(max_batch_size=3, batch_wait_timeout_s=10)
        assert held.batches == [[0, 1]]
        await line_up(tasks, *map(call, range(2, 6)))
        held.gate.set()
    assert held.batches == [[0, 1], [2, 3, 4], [5]]
    assert (batcher.options.max_batch_size, batcher.options.batch_wait_timeout_s) == (3, 10)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_batch_size": 5, "batch_wait_timeout_s": -1}, ValueError),
        ({"max_batch_size": 5, "overload": "drop"}, ValueError),
        ({"max_batch_size": 5, "handler_timeout_s": "1"}, TypeError),
        ({"max_batch_size": 5, "unknown": 1}, TypeError),
    ],
)
async def test_a_wrong_change_changes_nothing(changes: Any, error: type[Exception]) -> None:
    batcher = shoal.Batcher(Recorder(), max_batch_size=2)
    before = batcher.options
    async with batcher as call:
        with pytest.raises(error):
            batcher.configure(**changes)
        assert batcher.options is before
        assert await call(1) == 1


async def test_a_batcher_can_be_configured_before_it_is_opened_while_it_closes_and_after(held):
    batcher = shoal.Batcher(held)
    batcher.configure(max_batch_size=2)
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        (caller,) = await launch(tasks, call.map(range(4)))
        tasks.start_soon(batcher.aclose)
        await settle()
        batcher.configure(max_concurrent_batches=3)
        held.gate.set()
    assert caller.outcome == [0, 1, 2, 3]
    assert held.batches == [[0, 1], [2, 3]]
    batcher.configure(max_batch_size=3)
    assert batcher.options.max_batch_size == 3


class Sizes:
    @shoal.batch(max_batch_size=4, batch_wait_timeout_s=None)
    async def sizes(self, items: list[int]) -> list[int]:
        return [len(items)] * len(items)

    def reconfigure(self, size: int) -> None:
        self.sizes.set_max_batch_size(size)
        assert self.sizes.get_max_batch_size() == size


@pytest.mark.real_time
@pytest.mark.parametrize("opened", ["by name", "in a block"])
@pytest.mark.parametrize("kind_of_thread", ["worker", "own"])
async def test_setters_in_a_thread_reach_the_batcher_that_is_open(opened, kind_of_thread):
    instance, other = Sizes(), Sizes()
    named = [instance, other] if opened == "by name" else []
    async with shoal.open_batchers(*named):
        assert await outcomes(*map(instance.sizes, range(4))) == [4] * 4
        assert await outcomes(*map(other.sizes, range(4))) == [4] * 4
        if kind_of_thread == "worker":
            await anyio.to_thread.run_sync(instance.reconfigure, 2)
        else:
            thread = threading.Thread(target=instance.reconfigure, args=(2,))
            thread.start()
            thread.join()  # it waits for nothing of this event loop
            while instance.sizes.get_max_batch_size() != 2:
                await anyio.lowlevel.checkpoint()
        assert await outcomes(*map(instance.sizes, range(4))) == [2] * 4
        assert await outcomes(*map(other.sizes, range(4))) == [4] * 4
        with pytest.raises(ValueError, match="max_batch_size"):
            await anyio.to_thread.run_sync(instance.reconfigure, 0)
        assert instance.sizes.get_max_batch_size() == 2


async def test_stream_options_change_for_later_streams() -> None:
    async def handler(items: list[int]) -> Any:
        for number in range(10):
            made.append(number)
            yield [number] * len(items)

    made: list[int] = []
    batcher = shoal.Batcher(handler, stream_buffer=1)
    async with batcher as call:
        batcher.configure(stream_buffer=4)
        async with call(0):
            await settle()
            assert len(made) == 4
        async with anyio.create_task_group() as tasks:
            (reader,) = await read_all(tasks, call(0))
    assert reader.items == list(range(10))


async def test_a_batch_that_gathers_keeps_its_size_and_its_wait(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, max_batch_size=3, batch_wait_timeout_s=50)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(0), call(1))
        await anyio.sleep(5)
        batcher.configure(max_batch_size=1, batch_wait_timeout_s=0)
        assert batcher.options.max_batch_size == 1
        assert batcher.options.batch_wait_timeout_s == 0
        await anyio.sleep(5)
        assert recorder.batches == []
        await launch(tasks, call(2))
        assert recorder.batches == [[0, 1, 2]]
        await launch(tasks, call(3), call(4))
        assert recorder.batches[1:] == [[3], [4]]
        batcher.configure(max_batch_size=9, batch_wait_timeout_s=7)
        await line_up(tasks, call(5))
        batcher.set_batch_wait_timeout_s(0)
        await anyio.sleep(6)
        assert recorder.batches[3:] == []
    assert recorder.batches[3:] == [[5]]
    assert recorder.started_at == pytest.approx([10, 10, 10, 17])


async def test_when_those_that_gathered_have_left_the_new_options_hold(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, max_batch_size=3, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, call(0), call(1))
        batcher.configure(max_batch_size=2)
        for caller in callers:
            caller.leave()
        await settle()
        assert await call.map([2, 3]) == [2, 3]
    assert recorder.batches == [[2, 3]]


async def test_a_call_that_joins_what_gathers_does_so_by_its_options(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, max_batch_size=3, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, call(0))
        batcher.configure(bucket_by=lambda n: n % 2, batch_size_fn=lambda n: n, max_batch_size=5)
        callers = await launch(tasks, call(7), call(8), call(4), call(9))
        assert recorder.batches == [[0, 7, 8]]
        assert isinstance(callers[3].outcome, shoal.errors.ItemTooLarge)
        batcher.flush()
        await settle()
        assert recorder.batches[1:] == [[4]]


async def test_bounds_on_admission_hold_at_once(held: Held) -> None:
    async with opening(held, max_batch_size=3, batch_wait_timeout_s=9) as (batcher, call, tasks):
        await launch(tasks, call(0))
        batcher.configure(max_queued_requests=0, max_batch_size=2, max_concurrent_batches=2)
        await settle()
        # Two slots of three, less the one that waits.
        assert batcher.statistics().scheduling_capacity == 5
        await launch(tasks, call(1), call(2))
        assert held.batches == [[0, 1, 2]]
        await launch(tasks, call(3), call(4))
        assert isinstance(await outcome(call(5)), shoal.errors.Overloaded)
        held.gate.set()
    assert held.batches == [[0, 1, 2], [3, 4]]


async def test_what_runs_keeps_the_options_under_which_it_gathered(held: Held) -> None:
    async with opening(held, batch_wait_timeout_s=5, handler_timeout_s=3) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(0))
        batcher.configure(handler_timeout_s=100)
        await anyio.sleep(9)
        assert isinstance(caller.outcome, shoal.errors.HandlerTimeout)
        (caller,) = await line_up(tasks, call(1))
        await anyio.sleep(50)
        held.gate.set()
    assert caller.outcome == 1


def noting(sizes: list[int]) -> Any:
    """Makes a handler that takes a whole open batch, and notes its size."""

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        joined = [request async for request in batch]
        sizes.append(len(joined))
        for request in joined:
            request.finish(request.item)

    return handler


async def test_the_next_open_batch_has_the_new_options_though_its_requests_came_before() -> None:
    sizes: list[int] = []
    slots: Any = {"max_batch_size": 2, "batch_wait_timeout_s": 50, "max_concurrent_batches": 2}
    async with opening(noting(sizes), fill="open", **slots) as (batcher, call, tasks):
        await launch(tasks, call(0))
        batcher.configure(max_batch_size=1)
        for number in (1, 2, 3):  # all of them before the batch takes one
            tasks.start_soon(call, number)
        await settle()
        assert sorted(sizes) == [1, 1, 2]


class Model:
    def __init__(self, size: int | None = None) -> None:
        self.batches: list[int] = []
        if size is not None:
            self.predict.set_max_batch_size(size)

    def reconfigure(self, config: dict[str, Any]) -> None:
        self.predict.configure(**config)

    @shoal.batch(max_batch_size=4, batch_wait_timeout_s=1)
    async def predict(self, items: list[int]) -> list[int]:
        self.batches.append(len(items))
        return items


async def test_setters_work_before_a_method_is_open_for_each_instance_apart() -> None:
    small, usual = Model(2), Model()
    assert (small.predict.get_max_batch_size(), usual.predict.get_max_batch_size()) == (2, 4)
    small.reconfigure({"batch_wait_timeout_s": 0.5})
    assert small.predict.get_batch_wait_timeout_s() == 0.5
    assert usual.predict.get_batch_wait_timeout_s() == 1
    for _ in range(2):  # what was set outlives the batcher
        async with shoal.open_batchers(small.predict, usual.predict):
            await small.predict.map(range(4))
            await usual.predict.map(range(4))
    assert (small.batches, usual.batches) == ([2, 2, 2, 2], [4, 4])
    async with shoal.open_batchers():
        await small.predict.map(range(4))
    assert small.batches == [2, 2, 2, 2, 2, 2]


class Slotted:
    __slots__ = ()

    @shoal.batch(max_batch_size=4)
    async def predict(self, items: list[int]) -> list[int]:
        return [len(items)] * len(items)


async def test_of_an_instance_that_can_not_be_kept_track_of_nothing_is_changed() -> None:
    model = Slotted()
    async with shoal.open_batchers(model.predict):
        with pytest.raises(TypeError, match="__weakref__"):
            model.predict.set_max_batch_size(2)
        assert model.predict.get_max_batch_size() == 4
        model.predict.batcher.set_max_batch_size(2)
        assert await model.predict.map(range(4)) == [2] * 4


async def test_a_setter_before_opening_is_checked() -> None:
    model = Model()
    with pytest.raises(ValueError, match="max_batch_size must be at least 1"):
        model.predict.set_max_batch_size(0)
    with pytest.raises(TypeError, match="not an option"):
        model.predict.configure(size=3)
    assert model.predict.get_max_batch_size() == 4


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_what_was_set_in_one_event_loop_holds_in_the_next(backend: str) -> None:
    @shoal.batch(max_batch_size=4)
    async def sizes(items: list[int]) -> list[int]:
        return [len(items)] * len(items)

    async def first() -> None:
        async with shoal.open_batchers(sizes):
            sizes.set_max_batch_size(2)

    async def second() -> list[int]:
        async with shoal.open_batchers(sizes):
            assert sizes.get_max_batch_size() == 2
            return await sizes.map(range(4))

    anyio.run(first, backend="trio")
    assert anyio.run(second, backend=backend) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("before", "after", "batches"),
    [
        pytest.param({}, {"bucket_by": lambda n: n % 2}, [[0, 2, 4], [1, 3, 5]], id="buckets"),
        pytest.param({"bucket_by": lambda n: n % 2}, {"bucket_by": None}, [[*range(6)]], id="one"),
        pytest.param(
            {},
            {"batch_size_fn": lambda n: n, "max_batch_size": 5},
            [[0, 1, 2], [3], [4], [5]],
            id="costs",
        ),
        pytest.param(
            {"batch_size_fn": lambda n: n, "max_batch_size": 5},
            {"batch_size_fn": None},
            [[0, 1, 2, 3, 4], [5]],
            id="no costs",
        ),
        pytest.param(
            {},
            {"max_batch_size": 4, "allowed_batch_sizes": (2, 4)},
            [[0, 1, 2, 3], [4, 5]],
            id="allowed",
        ),
        pytest.param({}, {"preferred_batch_sizes": (4,)}, [[0, 1, 2, 3], [4, 5]], id="preferred"),
        pytest.param({"idle_timeout_s": 1}, {"idle_timeout_s": None}, [[*range(6)]], id="no idle"),
        pytest.param({}, {"order": "deadline"}, [[*range(6)]], id="order"),
        pytest.param({}, {"priority_levels": 3}, [[*range(6)]], id="levels"),
    ],
)
async def test_who_waits_is_served_by_the_new_options_in_order_of_arrival(before, after, batches):
    held = Held()
    async with opening(held, **before) as (batcher, call, tasks):
        await line_up(tasks, call(0))
        batcher.flush()
        await settle()
        callers = await line_up(tasks, *map(call, range(6)))
        batcher.configure(**after)
        held.gate.set()
    assert [caller.outcome for caller in callers] == list(range(6))
    assert held.batches[1:] == batches


async def test_a_new_window_counts_from_the_arrival(held: Held) -> None:
    async with opening(held, batch_wait_timeout_s=None) as (batcher, call, tasks):
        await line_up(tasks, call("plug"))
        batcher.flush()
        await settle()
        await line_up(tasks, call(1))
        await anyio.sleep(4)
        batcher.configure(idle_timeout_s=6, batch_wait_timeout_s=0)
        held.gate.set()
    assert held.started_at[1:] == [pytest.approx(6)]


async def test_what_is_too_large_under_the_new_options_fails_alone(held: Held) -> None:
    async with plugged(held, 1, batch_size_fn=lambda n: n) as (batcher, call, tasks):
        small, large = await line_up(tasks, call(4), call(6))
        batcher.configure(max_batch_size=5)
        await settle()
        assert small.outcome is PENDING
        assert isinstance(large.outcome, shoal.errors.ItemTooLarge)
        assert (batcher.statistics().queued, batcher.statistics().failed) == (1, 1)
    assert small.outcome == 4
    assert held.batches == [[1], [4]]


async def test_who_is_parked_is_admitted_by_the_new_bound_in_order(held: Held) -> None:
    options: Any = {"max_queued_requests": 1, "max_batch_size": 1, "overload": "wait"}
    async with plugged(held, **options) as (batcher, call, tasks):
        await line_up(tasks, *map(call, range(5)))
        assert (batcher.statistics().queued, batcher.statistics().parked) == (1, 4)
        batcher.configure(max_queued_requests=3, bucket_by=lambda n: n % 2)
        assert (batcher.statistics().queued, batcher.statistics().parked) == (3, 2)
    assert held.batches[1:] == [[n] for n in range(5)]


async def test_wishes_are_kept_when_the_options_change(held: Held) -> None:
    async with plugged(held, max_batch_size=1, priority_levels=2) as (batcher, call, tasks):
        (late,) = await line_up(tasks, call.options(timeout_s=5)("late"))
        (bored,) = await line_up(tasks, call.options(queue_timeout_s=3)("bored"))
        await line_up(tasks, call.options(priority=2)("low"), call.options(priority=1)("high"))
        batcher.configure(bucket_by=lambda item: None, order="deadline")
        await anyio.sleep(6)
        assert [late.ended_at, bored.ended_at] == [
            pytest.approx(5),
            pytest.approx(3),
        ]
    assert held.batches == [["plug"], ["high"], ["low"]]


async def test_levels_that_are_gone_become_the_lowest(held: Held) -> None:
    options: Any = {"max_batch_size": 1, "priority_levels": 9, "priority_aging_s": None}
    async with plugged(held, **options) as (batcher, call, tasks):
        for level in (9, 5, 1, 2):
            await line_up(tasks, call.options(priority=level)(level))
        batcher.configure(priority_levels=2)
    assert held.batches[1:] == [[1], [9], [5], [2]]


async def test_who_waited_before_levels_had_bounds_counts_for_them(held: Held) -> None:
    async with plugged(held, max_batch_size=1) as (batcher, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        batcher.configure(default_queue_policy=shoal.QueuePolicy(max_queued_requests=2))
        assert isinstance(await outcome(call(3)), shoal.errors.Overloaded)
        await callers[0].gone()
        await line_up(tasks, call(4))
    assert held.batches[1:] == [[2], [4]]


async def test_who_waited_before_the_queue_shed_may_be_shed(held: Held) -> None:
    async with plugged(held, max_batch_size=1, max_queued_requests=2) as (batcher, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        batcher.configure(overload="shed_oldest")
        callers += await line_up(tasks, call(3))
    assert isinstance(callers[0].outcome, shoal.errors.Overloaded)
    assert held.batches[1:] == [[2], [3]]


async def test_a_flush_that_waits_for_a_slot_outlives_a_change(held: Held) -> None:
    async with opening(held, max_batch_size=2, batch_wait_timeout_s=60) as (batcher, call, tasks):
        await launch(tasks, call(0), call(1))
        (flushed,) = await line_up(tasks, call(2))
        batcher.flush()
        batcher.configure(bucket_by=lambda item: None)
        await held.release()
        assert flushed.outcome == 2


async def test_a_change_that_is_refused_changes_nothing_for_those_who_wait(recorder):
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=1, bucket_by=lambda n: n % 2)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, *map(call, range(4)))
        with pytest.raises(ValueError, match="do not go together"):
            batcher.configure(allowed_batch_sizes=(5, 10), preferred_batch_sizes=(4,))
    assert recorder.batches == [[0, 2], [1, 3]]


async def test_calls_before_the_change_run_under_it_and_padding_is_that_of_the_dispatch(held):
    options: Any = {"max_batch_size": 4, "allowed_batch_sizes": (4,)}
    async with plugged(held, 0, **options) as (batcher, call, tasks):
        await line_up(tasks, call(1))
        batcher.configure(allowed_batch_sizes=(2, 4))
    assert held.batches == [[0, 0, 0, 0], [1, 1]]


@pytest.mark.parametrize(("before", "after"), [("delay", None), ("reject", "delay")])
async def test_a_request_that_comes_back_keeps_the_action_at_the_end_of_its_time_in_the_queue(
    before: Any, after: Any
) -> None:
    handler = Refusing([RetryLater(1)], run_s=3)
    policies = [QueuePolicy(timeout_s=2, timeout_action=one) for one in (before, after) if one]
    async with opening(handler, default_queue_policy=policies[0]) as (batcher, call, tasks):
        (waiter,) = await launch(tasks, call(0))
        batcher.configure(default_queue_policy=None if after is None else policies[1])
    if before == "delay":
        assert waiter.outcome == 0
    else:
        assert isinstance(waiter.outcome, shoal.errors.DeadlineExceeded)
