"""Continuous batches: requests join and leave between the steps of a handler that runs on."""

import gc
import weakref
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, Caller, launch, line_up, outcome, read_all
from batching.open_scenes import ORDERS, Kind, Server, Stepper
from batching.scenes import opening, running, settle
from batching.test_idle import HOUR_S, watched
from shoal import DispatchReason


def of(handler: Any, kind: Kind, **options: Any) -> shoal.Batcher[Any]:
    return shoal.Batcher(handler, fill="continuous", streams=kind.streams, **options)


class Thing:
    """An item, or a result, whose life can be watched."""


# Steps


async def test_requests_join_and_leave_between_steps(kind: Kind) -> None:
    handler = Stepper(kind)
    async with of(handler, kind, max_batch_size=2) as call, anyio.create_task_group() as tasks:
        callers = await kind.line_up(tasks, call, ("a", 2))
        await anyio.sleep(0.5)
        callers += await kind.line_up(tasks, call, ("b", 3), ("c", 1), ("d", 1))
    assert handler.steps == [["a"], ["a", "b"], ["b", "c"], ["b", "d"]]
    assert handler.joined == [[("a", 2)], [("b", 3)], [("c", 1)], [("d", 1)]]
    assert [caller.outcome for caller in callers] == list("abcd")
    assert handler.ended == 1


@pytest.mark.parametrize("how", ["finishes", "fails", "leaves", "runs out of time"])
async def test_a_place_that_is_free_is_taken_before_the_next_step(kind: Kind, how: str) -> None:
    handler = Stepper(kind)
    async with of(handler, kind, max_batch_size=2) as call, anyio.create_task_group() as tasks:
        ends = {"finishes": 3, "fails": -3}.get(how, 9)
        face = call.options(timeout_s=2.5) if how == "runs out of time" else call
        (first,) = await kind.line_up(tasks, face, ("a", ends))
        callers = await kind.line_up(tasks, call, ("b", 9), ("c", 1), ("d", 1))
        await anyio.sleep(2.5)
        if how == "leaves":
            first.leave()
    # It ended in the third step, so the fourth has another in its place.
    assert [step for step in handler.steps if "a" in step][-1] == handler.steps[2]
    assert handler.steps[2:5] == [["a", "b"], ["b", "c"], ["b", "d"]]
    assert handler.joined[3:5] == [[("c", 1)], [("d", 1)]]
    assert [caller.outcome for caller in callers] == list("bcd")
    expected = {"finishes": "a", "leaves": LEFT}
    if how in expected:
        assert first.outcome == expected[how]
    else:
        kinds = {"fails": ValueError, "runs out of time": shoal.errors.DeadlineExceeded}
        assert type(first.outcome) is kinds[how]
    assert max(map(len, handler.steps)) == 2


@pytest.mark.parametrize("lengths", [(1, 2, 3), (2, 2, 2), (3, 1, 1)], ids=str)
async def test_callers_who_call_again_at_once_take_their_places_before_the_next_step(kind, lengths):
    async def call_again(call: Any, length: int) -> None:
        for _ in range(12 // length):
            await kind.ask(call, ("again", length))

    for _ in range(ORDERS):
        handler = Stepper(kind)
        async with of(handler, kind, max_batch_size=3) as call:
            await settle()
            async with anyio.create_task_group() as tasks:
                for length in lengths:
                    tasks.start_soon(call_again, call, length)
        assert handler.steps == [["again"] * 3] * 12


async def test_between_steps_the_handler_waits_only_while_nothing_is_active(kind: Kind) -> None:
    handler = Stepper(kind)
    async with of(handler, kind) as call:
        await kind.ask(call, ("a", 3))
        assert anyio.current_time() == pytest.approx(3)
        await anyio.sleep(100)
        assert len(handler.steps) == 3
        await kind.ask(call, ("b", 1))
    assert handler.joined == [[("a", 3)], [], [], [("b", 1)]]


# A task for each request


async def test_the_places_of_who_left_are_free_where_the_handler_is_let_go_on(kind: Kind) -> None:
    handler = Server(kind)
    batcher = of(handler, kind, max_batch_size=1, cancel_abandoned=False, max_queued_requests=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        first, second = await kind.launch(tasks, call, 1, 2)
        await first.gone()
        assert handler.given == [1, 2]
        third = await kind.line_up(tasks, call, 3)
        handler.let_go(1, 2, 3)
    assert (second.outcome, third[0].outcome) == (2, 3)


@pytest.mark.parametrize("how", ["leaves", "expires", "is overtaken"])
async def test_who_is_behind_what_does_not_fit_joins_when_it(kind: Kind, how: str) -> None:
    handler = Server(kind)
    batcher = of(handler, kind, max_batch_size=10, batch_size_fn=float, priority_levels=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        await kind.launch(tasks, call, 6)
        (large,) = await kind.launch(tasks, call.options(timeout_s=5, priority=2), 8)
        level = 1 if how == "is overtaken" else 2
        await kind.launch(tasks, call.options(priority=level), 3)
        assert handler.given == [6, 3][: 3 - level]
        if how == "leaves":
            large.leave()
            await settle()
        elif how == "expires":
            await anyio.sleep(6)
        assert handler.given == [6, 3]
        handler.let_go(6, 3, 8)


@pytest.mark.parametrize("first", ["idle", "one is active"])
async def test_who_stands_behind_one_who_has_just_left_joins(first: str) -> None:
    unary = Kind(streams=False)
    for _ in range(ORDERS):
        handler = Server(unary)
        handler.let_go(1, 2)
        size = 1 if first == "idle" else 2
        async with opening(of(handler, unary, max_batch_size=size)) as (_, call, tasks):
            if first != "idle":
                await line_up(tasks, call(0))
            await settle()
            leaver, behind = Caller(call(1)), Caller(call(2))
            tasks.start_soon(leaver.run)
            tasks.start_soon(behind.run)
            tasks.start_soon(leaver.leaves)
            await settle()
            assert behind.outcome == 2
            handler.let_go(0)


async def test_an_end_and_an_arrival_in_one_tick_lose_nobody(kind: Kind) -> None:
    for _ in range(ORDERS):
        handler = Server(kind)
        async with of(handler, kind, max_batch_size=1) as call, anyio.create_task_group() as tasks:
            (first,) = await kind.launch(tasks, call, 1)
            second, third = Caller(kind.ask(call, 2)), Caller(kind.ask(call, 3))
            tasks.start_soon(second.run)
            handler.let_go(1, 2, 3)
            tasks.start_soon(first.leaves)
            tasks.start_soon(third.run)
        assert first.outcome in (1, LEFT)
        assert (second.outcome, third.outcome) == (2, 3)
        assert handler.most == 1


# Several slots


@pytest.mark.parametrize("gives_up", [1, 2, 3])
async def test_a_wait_that_is_given_up_keeps_nobody_from_the_queue(gives_up: int) -> None:
    """Of three handlers that wait for requests one gives up, and each of the others takes one."""
    scopes: dict[int, anyio.CancelScope] = {}
    go = anyio.Event()

    async def handler(batch: Any) -> None:
        for request in await batch.join():
            await go.wait()
            request.finish(batch.id)
        with anyio.CancelScope() as scopes[batch.id]:
            await batch.join()
        await anyio.sleep_forever()

    slots = {"max_batch_size": 1, "max_concurrent_batches": 3, "graceful_shutdown_timeout_s": 0}
    async with opening(handler, fill="continuous", **slots) as (batcher, call, tasks):
        await launch(tasks, *map(call, range(3)))
        go.set()
        await settle()
        assert sorted(scopes) == [1, 2, 3]
        scopes[gives_up].cancel()
        await settle()
        for item in (4, 5):
            await launch(tasks, call(item))
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running) == (0, 2)
        tasks.cancel_scope.cancel()


async def test_of_too_many_batches_one_ends_though_requests_keep_coming(kind: Kind) -> None:
    handler = Server(kind)
    batcher = of(handler, kind, max_batch_size=1, max_concurrent_batches=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await kind.launch(tasks, call, *range(6))
        assert handler.active == [0, 1]
        batcher.configure(max_concurrent_batches=1)
        handler.let_go(*range(6))
        await settle()
        assert handler.ended == 1
        assert [caller.outcome for caller in callers] == list(range(6))
        assert await kind.ask(call, 3) == 3
    assert handler.starts == 2


async def test_free_places_admit_requests_where_the_queue_has_no_room(kind: Kind) -> None:
    handler = Stepper(kind)
    batcher = of(handler, kind, max_batch_size=2, max_queued_requests=0)
    async with batcher as call, anyio.create_task_group() as tasks:
        await settle()
        callers = await kind.line_up(tasks, call, ("a", 2))
        await anyio.sleep(0.5)
        callers += await kind.line_up(tasks, call, ("b", 2))
        assert isinstance(await outcome(kind.ask(call, ("c", 1))), shoal.errors.Overloaded)
        await anyio.sleep(2)
        callers += await kind.line_up(tasks, call, ("d", 1))
    assert [caller.outcome for caller in callers] == list("abd")
    assert batcher.statistics().rejected == 1


# How handlers end


async def test_a_crash_fails_who_is_active_and_the_next_request_starts_the_handler_again(kind):
    handler = Server(kind)
    cause = ValueError("the handler's")
    async with opening(of(handler, kind, max_batch_size=2)) as (batcher, call, tasks):
        callers = await kind.launch(tasks, call, cause, 1, 2, 3)
        handler.let_go(cause)
        await settle()
        errors = [caller.outcome for caller in callers[:2]]
        assert all(isinstance(error, ExceptionGroup) for error in errors)
        assert errors[0] is not errors[1]
        assert handler.active == [2, 3], "those in the queue are served"
        handler.let_go(2, 3)
    assert [caller.outcome for caller in callers[2:]] == [2, 3]
    assert (handler.starts, handler.ended) == (2, 1)
    statistics = batcher.statistics()
    assert (statistics.finished, statistics.failed) == (2, 2)


async def test_when_all_have_left_the_handler_goes_on(kind: Kind) -> None:
    """Others will come, and starting it again may have its price."""
    handler = Server(kind)
    async with of(handler, kind) as call, anyio.create_task_group() as tasks:
        callers = await kind.launch(tasks, call, 1, 2)
        for caller in callers:
            caller.leave()
        await settle()
        handler.let_go(1, 2, 3)
        assert await kind.ask(call, 3) == 3
    assert (handler.starts, handler.ended) == (1, 1)


# Closing


async def test_closing_serves_all_who_are_in_the_queue_and_then_ends_the_iteration(kind):
    handler = Stepper(kind)
    async with running(of(handler, kind, max_batch_size=2)) as (batcher, call, tasks):
        callers = await kind.line_up(tasks, call, *[(item, 2) for item in range(5)])
        await anyio.sleep(0.5)
        tasks.start_soon(batcher.aclose)
        await settle()
        assert isinstance(await outcome(kind.ask(call, (9, 1))), shoal.errors.BatcherClosed)
    assert [caller.outcome for caller in callers] == list(range(5))
    assert handler.ended == 1
    assert batcher.statistics().state == "closed"


async def test_a_handler_that_ignores_the_end_is_cancelled_after_the_grace(kind: Kind) -> None:
    cancelled: list[float] = []

    async def handler(batch: Any) -> None:
        async for request in batch:
            await kind.answer(request, request.item)
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(anyio.current_time())
            raise

    async with of(handler, kind, graceful_shutdown_timeout_s=5) as call:
        assert await kind.ask(call, 1) == 1
        closing_at = anyio.current_time()
    assert cancelled == [pytest.approx(closing_at + 5)]


async def test_after_the_grace_those_who_are_left_fail(kind: Kind) -> None:
    handler = Server(kind)
    batcher = of(handler, kind, max_batch_size=2, graceful_shutdown_timeout_s=5)
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        callers = await kind.launch(tasks, call, *range(4))
        counts = await batcher.aclose()
    assert counts == shoal.statistics.ClosingCounts(finished=0, failed=4, cancelled=0)
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 4
    assert (handler.active, handler.given) == ([], [0, 1])


async def test_a_handler_can_close_its_own_batcher(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            await kind.answer(request, request.item)
            if request.item == "last":
                await batcher.aclose()

    async with running(of(handler, kind)) as (batcher, call, _):
        assert await kind.ask(call, "first") == "first"
        assert await kind.ask(call, "last") == "last"
    assert batcher.statistics().state == "closed"


async def test_a_handler_that_calls_its_own_function_is_answered_by_itself(kind: Kind) -> None:
    async def serve(request: Any) -> None:
        number = request.item
        below = await kind.ask(batcher.call, number - 1) if number else 0
        await kind.answer(request, below + number)

    async def handler(batch: Any) -> None:
        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(serve, request)

    batcher = of(handler, kind)
    async with batcher as call:
        assert await kind.ask(call, 4) == 10


async def test_draining_changes_nothing(kind: Kind) -> None:
    handler = Server(kind)
    handler.let_go(1, 2)
    batcher = of(handler, kind)
    async with batcher as call:
        assert await kind.ask(call, 1) == 1
        batcher.drain()
        batcher.flush()
        assert await kind.ask(call, 2) == 2
    assert handler.starts == 1


# Streams


async def test_a_slow_reader_fails_alone_and_its_place_is_taken() -> None:
    unary = Kind(streams=True)

    async def serve(request: Any) -> None:
        for number in range(4):
            await request.send(number)
        if not request.cancelled:
            request.finish()

    async def handler(batch: Any) -> None:
        async with anyio.create_task_group() as tasks:
            async for request in batch:
                given.append(request.item)
                tasks.start_soon(serve, request)

    given: list[str] = []
    batcher = of(handler, unary, max_batch_size=2, stream_buffer=2, slow_reader_timeout_s=5)
    async with batcher as call, anyio.create_task_group() as tasks, call("slow") as slow:
        (fast,) = await read_all(tasks, call("fast"))
        await settle()
        assert (fast.items, fast.outcome) == ([0, 1, 2, 3], "end")
        readers = await read_all(tasks, call("b"), call("c"))
        await anyio.sleep(6)
        assert given == ["slow", "fast", "b", "c"]
        assert [reader.outcome for reader in readers] == ["end", "end"]
        assert [await anext(slow), await anext(slow)] == [0, 1]
        with pytest.raises(shoal.errors.SlowReader, match="5"):
            await anext(slow)


async def test_a_wait_in_send_that_is_given_up_leaves_the_request_as_it_was() -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            await request.send(1)
            for _ in range(3):
                with anyio.move_on_after(1) as scope:
                    await request.send(2)
                assert scope.cancelled_caught
            await request.send(3)
            request.finish()

    batcher = of(handler, Kind(streams=True), stream_buffer=1)
    async with batcher as call, call(0) as stream:
        await anyio.sleep(5)
        assert [item async for item in stream] == [1, 3]


async def test_the_time_of_sends_that_are_given_up_is_charged_to_the_reader() -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            await request.send(1)
            while not request.cancelled:
                with anyio.move_on_after(1):
                    await request.send(2)

    batcher = of(handler, Kind(streams=True), stream_buffer=1, slow_reader_timeout_s=5)
    async with batcher as call, call(0) as stream:
        await anyio.sleep(20)
        assert await anext(stream) == 1
        with pytest.raises(shoal.errors.SlowReader):
            await anext(stream)


async def test_two_tasks_that_send_to_one_reader_who_is_slow() -> None:
    """One waits; the other is told that it can't."""

    async def send(request: Any, item: int) -> None:
        try:
            await request.send(item)
        except RuntimeError as error:
            errors.append(error)

    async def handler(batch: Any) -> None:
        async for request in batch:
            async with anyio.create_task_group() as tasks:
                for item in range(3):
                    tasks.start_soon(send, request, item)
            request.finish()

    errors: list[RuntimeError] = []
    batcher = of(handler, Kind(streams=True), stream_buffer=1)
    async with batcher as call, call(0) as stream:
        await settle()
        assert len([item async for item in stream]) == 2
    assert len(errors) == 1


async def test_a_reader_that_leaves_lets_the_sender_go_on() -> None:
    sent: list[int] = []

    async def handler(batch: Any) -> None:
        async for request in batch:
            for number in range(3):
                await request.send(number)
                sent.append(number)
            assert request.cancelled

    async with of(handler, Kind(streams=True), stream_buffer=1, slow_reader_timeout_s=None) as call:
        async with call(0) as stream:
            assert await anext(stream) == 0
            await settle()
            assert sent == [0, 1]
        await settle()
        assert sent == [0, 1, 2]


async def joined_of(batch: Any, count: int) -> list[Any]:
    """Takes that many requests of a batch."""
    joined: list[Any] = []
    while len(joined) < count:
        joined += await batch.join()
    return joined


async def test_the_items_of_a_step_are_sent_with_one_checkpoint() -> None:
    passes = 0

    async def count_passes() -> None:
        nonlocal passes
        while True:
            await anyio.lowlevel.checkpoint()
            passes += 1

    async def handler(batch: Any) -> None:
        joined = await joined_of(batch, 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_passes)
            await batch.send({request: request.item for request in joined})
            tasks.cancel_scope.cancel()
        for request in joined:
            request.finish()

    async with opening(of(handler, Kind(streams=True), max_batch_size=10)) as (_, call, tasks):
        readers = await read_all(tasks, *map(call, range(10)))
    assert [reader.items for reader in readers] == [[item] for item in range(10)]
    assert passes <= 1


async def test_a_step_is_sent_when_all_its_buffers_have_room() -> None:
    async def handler(batch: Any) -> None:
        joined = await joined_of(batch, 2)
        for number in range(3):
            await batch.send(dict.fromkeys(joined, number))
        for request in batch.active:
            request.finish()

    options = {"max_batch_size": 2, "stream_buffer": 1, "slow_reader_timeout_s": 5}
    opened = opening(of(handler, Kind(streams=True), **options))
    async with opened as (_, call, tasks), call("fast") as first, call("slow") as slow:
        (fast,) = await read_all(tasks, first)
        await settle()
        assert fast.items == [0]
        await anyio.sleep(6)
        assert (fast.items, fast.outcome) == ([0, 1, 2], "end")
        assert await anext(slow) == 0
        with pytest.raises(shoal.errors.SlowReader):
            await anext(slow)


async def test_a_step_with_something_wrong_is_not_sent_at_all() -> None:
    async def handler(batch: Any) -> None:
        good, bad = await joined_of(batch, 2)
        for wrong in (shoal.END, ValueError("x")):
            with pytest.raises(TypeError):
                await batch.send({good: 1, bad: wrong})
        bad.finish()
        with pytest.raises(RuntimeError, match="send an item"):
            await batch.send({good: 2, bad: 3})
        with pytest.raises(TypeError, match="a dict of an item for each request"):
            await batch.send([(good, 4)])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await batch.send({good: 4})
        await batch.send({good: 5})
        await batch.send({})
        good.finish()

    async with opening(of(handler, Kind(streams=True), max_batch_size=2)) as (_, call, tasks):
        readers = await read_all(tasks, call("good"), call("bad"))
    assert [(reader.items, reader.outcome) for reader in readers] == [([5], "end"), ([], "end")]


async def test_a_request_of_another_batcher_is_not_sent_to() -> None:
    foreign: list[Any] = []

    async def other(batch: Any) -> None:
        foreign.extend(await joined_of(batch, 1))
        await batch.join()
        foreign[0].finish()

    async def handler(batch: Any) -> None:
        (own,) = await joined_of(batch, 1)
        with pytest.raises(ValueError, match="another batcher"):
            await batch.send({own: 1, foreign[0]: 1})
        own.finish()

    kind = Kind(streams=True)
    async with of(other, kind) as call_other, of(handler, kind) as call, call_other("x"):
        await settle()
        async with call("y") as stream:
            assert [item async for item in stream] == []


async def test_an_end_and_an_error_come_after_the_items() -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            await request.send(1)
            await request.send(2)
            if request.item == "fails":
                request.fail(ValueError("after the items"))
            else:
                request.finish()

    batcher = of(handler, Kind(streams=True))
    async with batcher as call, call("ends") as ends, call("fails") as fails:
        await settle()
        assert [item async for item in ends] == [1, 2]
        assert [await anext(fails), await anext(fails)] == [1, 2]
        with pytest.raises(ValueError, match="after"):
            await anext(fails)


async def test_a_deadline_ends_a_stream_while_its_sender_waits() -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            while not request.cancelled:
                await request.send(1)
            ended_at.append(anyio.current_time())

    ended_at: list[float] = []
    batcher = of(handler, Kind(streams=True), stream_buffer=1, slow_reader_timeout_s=None)
    async with batcher as call, call.options(timeout_s=5)(0) as stream:
        await anyio.sleep(6)
        assert ended_at == [pytest.approx(5)]
        assert await anext(stream) == 1
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await anext(stream)


async def test_the_occupancy_of_a_batch_is_known_over_time(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        async for _ in batch.steps():
            await anyio.sleep(1)
            await kind.answer(batch.active[0], "done")

    batcher = of(handler, kind, max_batch_size=2)
    async with batcher as call:
        await anyio.sleep(10)
        async with anyio.create_task_group() as tasks:
            await kind.line_up(tasks, call, 0)
            await anyio.sleep(0.5)
            await kind.line_up(tasks, call, 1, 2)  # which join the next step
            await anyio.sleep(1)
            now = batcher.statistics().occupancy
            assert now is not None
            assert (now.joined, now.left, now.idle_batches) == (3, 1, 0)
            assert (now.request_s, now.busy_s) == (pytest.approx(1 + 1), pytest.approx(1.5))
        await anyio.sleep(10)
        then = batcher.statistics()
    occupancy = then.occupancy
    assert occupancy is not None
    assert (occupancy.joined, occupancy.left, occupancy.idle_batches) == (3, 3, 1)
    assert occupancy.busy_s == pytest.approx(3)
    assert occupancy.request_s == pytest.approx(1 + 2 + 1)
    assert (occupancy.steps.total, occupancy.steps.sum) == (3, 4)
    assert then.wait_s.total == 3
    assert then.wait_s.sum == pytest.approx(1)
    closed = batcher.statistics()
    assert {r: n for r, n in closed.batches.items() if n} == {DispatchReason.OPEN: 1}
    # Such a batch has no size and no run time: it lasts as long as its batcher.
    assert closed.batch_size.total == closed.run_s.total == 0


# What is left behind


async def test_requests_leave_nothing_behind(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            await kind.answer(request, Thing())
            del request

    kept: weakref.WeakSet[Thing] = weakref.WeakSet()

    async def use(call: Any) -> None:
        for _ in range(10):
            item = Thing()
            kept.add(item)
            kept.add(await kind.ask(call, item))

    batcher = of(handler, kind, max_batch_size=8)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(use, call)
        await settle()
        assert (batcher.statistics().finished, batcher.statistics().batches_running) == (200, 1)
        gc.collect()
        assert len(kept) == 0


async def test_those_who_left_leave_nothing_behind(kind: Kind) -> None:
    """Though the handler is not asked for another step since."""
    handler = Server(kind)
    kept: weakref.WeakSet[Thing] = weakref.WeakSet()
    async with of(handler, kind) as call:
        async with anyio.create_task_group() as tasks:
            item = Thing()
            kept.add(item)
            (caller,) = await kind.launch(tasks, call, item)
            caller.leave()
            handler.let_go(item)
        del item, caller
        handler.given.clear()
        handler._gates.clear()
        handler.let_go(0)
        await kind.ask(call, 0)
        await settle()
        gc.collect()
        assert len(kept) == 0


@pytest.mark.parametrize("slots", [1, 3])
async def test_an_idle_batch_does_nothing(kind: Kind, slots: int) -> None:
    handler = Stepper(kind)
    async with of(handler, kind, max_concurrent_batches=slots, max_batch_size=1) as call:
        for _ in range(2):
            await settle()
            with watched() as activity:
                await anyio.sleep(HOUR_S)
            assert activity.anything == 0
            async with anyio.create_task_group() as tasks:
                await kind.line_up(tasks, call, *[(item, 1) for item in range(slots)])


async def test_a_full_batch_whose_requests_wait_does_nothing(kind: Kind) -> None:
    handler = Server(kind)
    batcher = of(handler, kind, max_batch_size=1, graceful_shutdown_timeout_s=0)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await kind.launch(tasks, call, 1, 2)
        with watched() as activity:
            await anyio.sleep(HOUR_S)
        assert activity.anything == 0
        assert [caller.outcome for caller in callers] == [PENDING] * 2
        tasks.cancel_scope.cancel()


def test_an_open_batch_without_the_option_names_it():
    async def handle(batch: shoal.OpenBatch[int, int]) -> None: ...

    with pytest.raises(TypeError, match="takes an open batch: say so with fill='open' or"):
        shoal.batch(handle)
