"""Open batches: the handler starts with the first request and gets the others as they come."""

from contextlib import suppress
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, Caller, launch, line_up, outcome
from batching.open_scenes import ORDERS, Kind, Taker
from batching.scenes import opening, running, settle
from batching.test_idle import HOUR_S, watched
from batching.test_kept_alive import calls, found_after, leaves, reads
from shoal import DispatchReason


def of(handler: Any, kind: Kind, **options: Any) -> shoal.Batcher[Any]:
    return shoal.Batcher(handler, fill="open", streams=kind.streams, **options)


async def first_of(batch: Any) -> Any:
    (request,) = await batch.join()
    return request


# How a batch begins, fills and ends


async def test_ts1_ts6_the_handler_starts_with_the_first_request_and_gets_others_as_they_come(kind):
    came: list[tuple[float, Any]] = []

    async def handler(batch: Any) -> None:
        async for request in batch:
            came.append((anyio.current_time(), request.item))
            await kind.answer(request, request.item)

    async with opening(of(handler, kind, batch_wait_timeout_s=10)) as (_, call, tasks):
        callers = []
        for item in range(3):
            callers += await kind.launch(tasks, call, item)
            assert callers[-1].outcome == item, "answered while the batch is open"
            await anyio.sleep(2)
    assert came == [(pytest.approx(2 * item), item) for item in range(3)]


@pytest.mark.parametrize(
    ("how", "reason", "closed_at"),
    [
        ("full", DispatchReason.FULL, 1),
        ("wait", DispatchReason.TIMER, 5),
        ("idle", DispatchReason.IDLE, 3),
        ("flush", DispatchReason.FLUSH, 1),
        ("drain", DispatchReason.DRAIN, 1),
        ("close", DispatchReason.DRAIN, 1),
    ],
)
async def test_ts4_ts5_what_ends_a_batch(kind, how, reason, closed_at):
    handler = Taker(kind)
    options = {"wait": {"batch_wait_timeout_s": 5}, "idle": {"idle_timeout_s": 2}}.get(
        how, {"batch_wait_timeout_s": None}
    )
    size = 2 if how == "full" else 9
    async with running(of(handler, kind, max_batch_size=size, **options)) as (batcher, call, tasks):
        callers = await kind.line_up(tasks, call, 0)
        await anyio.sleep(1)
        callers += await kind.launch(tasks, call, 1)
        match how:
            case "flush" | "drain":
                getattr(batcher, how)()
            case "close":
                tasks.start_soon(batcher.aclose)
        await anyio.sleep(20)
        assert (handler.started, handler.closed) == ([0], [closed_at])
        assert handler.batches == [[0, 1]]
        assert handler.reasons == [reason]
        assert [caller.outcome for caller in callers] == [0, 1]
        statistics = batcher.statistics()
        assert {r: n for r, n in statistics.batches.items() if n} == {reason: 1}
        assert (statistics.batch_size.total, statistics.batch_size.sum) == (1, 2)
        await batcher.aclose()


async def test_the_first_that_does_not_fit_ends_the_batch_and_begins_the_next(kind: Kind) -> None:
    handler = Taker(kind)
    options = {"max_batch_size": 10, "batch_size_fn": float, "batch_wait_timeout_s": 5}
    async with opening(of(handler, kind, **options)) as (_, call, tasks):
        callers = await kind.line_up(tasks, call, 6, 3)
        await anyio.sleep(1)
        callers += await kind.line_up(tasks, call, 4, 1)
    assert handler.batches == [[6, 3], [4, 1]]
    # The second window counts from when the 4 came.
    assert handler.closed == [1, 6]
    assert handler.reasons == [DispatchReason.FULL, DispatchReason.TIMER]
    assert [caller.outcome for caller in callers] == [6, 3, 4, 1]


async def test_ts9_without_a_wait_a_batch_takes_what_is_there(kind: Kind) -> None:
    handler = Taker(kind)
    async with of(handler, kind) as call, anyio.create_task_group() as tasks:
        await settle()
        for item in range(3):
            tasks.start_soon(Caller(kind.ask(call, item)).run)
        await settle()
        assert [sorted(batch) for batch in handler.batches] == [[0, 1, 2]]
        assert handler.closed == [0]


async def test_the_idle_time_begins_with_the_latest_arrival(kind: Kind) -> None:
    handler = Taker(kind)
    handler.hold()
    options = {"idle_timeout_s": 3, "priority_levels": 2, "priority_aging_s": None}
    async with opening(of(handler, kind, max_batch_size=3, **options)) as (_, call, tasks):
        await kind.line_up(tasks, call.options(priority=1), 0, 0, 0)
        await anyio.sleep(1)
        await kind.line_up(tasks, call.options(priority=2), 1)
        await anyio.sleep(4)
        await kind.line_up(tasks, call.options(priority=1), 2)
        await anyio.sleep(1)
        handler.gate.set()
    assert handler.batches == [[0, 0, 0], [2, 1]]
    assert handler.closed == [0, 8]


async def test_a_flush_closes_the_batch_though_one_of_those_there_has_just_left() -> None:
    unary = Kind(streams=False)
    for _ in range(ORDERS):
        batcher = of(Taker(unary), unary, batch_wait_timeout_s=None)
        async with opening(batcher) as (_, call, tasks):
            await settle()
            first, second = Caller(call(1)), Caller(call(2))
            tasks.start_soon(first.run)
            tasks.start_soon(second.run)
            while batcher.statistics().queued + batcher.statistics().running < 2:
                await anyio.lowlevel.checkpoint()
            batcher.flush()
            await first.gone()
            assert second.outcome == 2


@pytest.mark.parametrize("settles", [True, False])
async def test_a_flush_covers_who_has_just_come(kind: Kind, settles: bool) -> None:
    handler = Taker(kind)
    async with opening(of(handler, kind, batch_wait_timeout_s=None)) as (batcher, call, tasks):
        await settle()
        caller = Caller(kind.ask(call, 1))
        tasks.start_soon(caller.run)
        while not batcher.statistics().queued + batcher.statistics().running:
            await anyio.lowlevel.checkpoint()
        if settles:
            await settle()
        batcher.flush()
        await settle()
        assert caller.outcome == 1
        (later,) = await kind.line_up(tasks, call, 2)
        await anyio.sleep(10)
        assert later.outcome is PENDING, "a flush is for those who were there"
        later.leave()


# Slots


async def test_one_batch_at_a_time_has_the_queue_to_itself(kind: Kind) -> None:
    handler = Taker(kind)
    handler.hold()
    options = {"max_concurrent_batches": 2, "batch_wait_timeout_s": None}
    async with opening(of(handler, kind, max_batch_size=2, **options)) as (batcher, call, tasks):
        for item in range(5):
            await kind.launch(tasks, call, item)
        assert handler.batches == [[0, 1], [2, 3]]
        assert batcher.statistics().batches_running == 2
        assert (batcher.statistics().running, batcher.statistics().queued) == (4, 1)
        handler.gate.set()
        await settle()
        assert handler.batches == [[0, 1], [2, 3], [4]]
        batcher.flush()


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_batch_ends_in_time_though_the_handler_does_not_look(kind, slots):
    """So the next one can begin on another slot."""
    started: list[float] = []

    async def handler(batch: Any) -> None:
        started.append(anyio.current_time() - made_at)
        await anyio.sleep(20)
        assert batch.reason is DispatchReason.TIMER
        async for request in batch:
            await kind.answer(request, batch.id)

    made_at = anyio.current_time()
    batcher = of(handler, kind, batch_wait_timeout_s=5, max_concurrent_batches=slots)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = []
        for item in range(3):
            callers += await kind.line_up(tasks, call, item)
            await anyio.sleep(3)
    # The third came at 6 s, when the first batch had been closed.
    assert started == [0, pytest.approx(6 if slots == 2 else 20)]
    assert [caller.outcome for caller in callers] == [1, 1, 2]


async def test_a_handler_that_does_not_look_gets_those_who_did_not_leave(kind: Kind) -> None:
    given: list[Any] = []

    async def handler(batch: Any) -> None:
        await anyio.sleep(20)
        given.extend([request.item async for request in batch])

    async with opening(of(handler, kind, batch_wait_timeout_s=5)) as (_, call, tasks):
        callers = await kind.launch(tasks, call, 0, 1, 2)
        callers[1].leave()
    assert given == [0, 2]
    assert callers[1].outcome is LEFT


@pytest.mark.parametrize("wait_s", [None, 50])
async def test_a_batch_that_is_over_its_time_keeps_no_slot_from_the_queue(kind, wait_s):
    """Though its handler takes long to clean up, and it would still be open."""

    async def handler(batch: Any) -> None:
        try:
            async for request in batch:
                if batch.id > 1:
                    await kind.answer(request, batch.id)
        finally:
            if batch.id == 1:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(100)

    options = {"batch_wait_timeout_s": wait_s, "handler_timeout_s": 1, "max_concurrent_batches": 2}
    async with opening(of(handler, kind, **options)) as (_, call, tasks):
        await kind.line_up(tasks, call, 1)
        await anyio.sleep(2)
        (second,) = await kind.launch(tasks, call, 2)
        assert second.outcome == 2
        tasks.cancel_scope.cancel()


# How handlers end


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_a_handler_that_ends_early_fails_who_is_in_its_batch(kind: Kind, how: str) -> None:
    """Looked at or not; and the next request starts it again."""
    go = anyio.Event()
    cause = ValueError("the handler's")

    async def handler(batch: Any) -> None:
        if batch.id > 1:
            async for request in batch:
                await kind.answer(request, "again")
            return
        requests = aiter(batch)
        await kind.answer(await anext(requests), "answered")
        await anext(requests)
        await go.wait()
        if how == "raises":
            raise cause

    async with opening(of(handler, kind, batch_wait_timeout_s=10)) as (batcher, call, tasks):
        callers = await kind.launch(tasks, call, 0, 1, 2)
        assert callers[0].outcome == "answered"
        go.set()
        await settle()
        errors = [caller.outcome for caller in callers[1:]]
        expected = ValueError if how == "raises" else shoal.errors.Unfinished
        assert [type(error) for error in errors] == [expected] * 2
        assert errors[0] is not errors[1]
        if how == "raises":
            assert all(error.__cause__ is cause for error in errors)
        assert await kind.ask(call, 3) == "again"
    statistics = batcher.statistics()
    assert (statistics.finished, statistics.failed) == (2, 2)
    assert statistics.batches[DispatchReason.OPEN] == 1
    assert sum(statistics.batches.values()) == 2


@pytest.mark.parametrize("how", ["returns", "raises"])
@pytest.mark.parametrize("comes_first", [False, True])
async def test_who_comes_in_the_tick_in_which_the_handler_ends_is_answered(kind, how, comes_first):
    go = anyio.Event()

    async def handler(batch: Any) -> None:
        for request in await batch.join():
            if request.item == 1:
                await go.wait()
            if how == "raises":
                raise ValueError
            await kind.answer(request, request.item)

    for _ in range(ORDERS):
        go = anyio.Event()
        async with opening(of(handler, kind, batch_wait_timeout_s=50)) as (_, call, tasks):
            (first,) = await kind.launch(tasks, call, 1)
            second = Caller(kind.ask(call, 2))
            if comes_first:
                tasks.start_soon(second.run)
                go.set()
            else:
                go.set()
                tasks.start_soon(second.run)
            await settle()
            assert PENDING not in (first.outcome, second.outcome)


async def test_a_batch_whose_handler_has_ended_takes_nobody(kind: Kind) -> None:
    kept: list[Any] = []

    async def handler(batch: Any) -> None:
        kept.append(batch)
        await kind.answer(await first_of(batch), batch.id)

    async with opening(of(handler, kind, batch_wait_timeout_s=50)) as (_, call, tasks):
        assert await kind.ask(call, 1) == 1
        await settle()
        caller = Caller(kind.ask(call, 2))
        tasks.start_soon(caller.run)
        for _ in range(5):
            assert kept[0].join_nowait() == []
            await anyio.lowlevel.checkpoint()
        assert await kept[0].join() == []
        await settle()
        assert caller.outcome == 2


# Callers that leave


async def test_a_caller_that_leaves_takes_nobody_with_it(kind: Kind) -> None:
    seen: list[list[bool]] = []

    async def handler(batch: Any) -> None:
        requests = [request async for request in batch]
        seen.append([request.cancelled for request in requests])
        await anyio.sleep(5)
        seen.append([request.cancelled for request in requests])
        assert [request.item for request in batch.active] == [0, 2]
        for request in requests:
            await kind.answer(request, request.item)
        assert [request.cancelled for request in requests] == [False, True, False]

    batcher = of(handler, kind, max_batch_size=3, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await kind.launch(tasks, call, 0, 1, 2)
        callers[1].leave()
    assert seen == [[False] * 3, [False, True, False]]
    assert [caller.outcome for caller in callers] == [0, LEFT, 2]
    assert (batcher.statistics().finished, batcher.statistics().cancelled) == (2, 1)


async def test_the_handler_goes_on_while_others_can_still_join(kind: Kind) -> None:
    handler = Taker(kind)
    async with opening(of(handler, kind, batch_wait_timeout_s=5)) as (_, call, tasks):
        (first,) = await kind.launch(tasks, call, 0)
        first.leave()
        await anyio.sleep(2)
        assert await kind.ask(call, 1) == 1
    assert (handler.batches, handler.closed, handler.cancelled) == ([[0, 1]], [5], 0)


@pytest.mark.parametrize("leave_at", [1, 7])
@pytest.mark.parametrize("cancel_abandoned", [True, False])
async def test_when_all_have_left_and_nobody_can_join_the_handler_is_cancelled(
    kind: Kind, leave_at: float, cancel_abandoned: bool
) -> None:
    ended: list[tuple[str, float]] = []

    async def handler(batch: Any) -> None:
        await batch.join()
        try:
            await anyio.sleep(20)
        except anyio.get_cancelled_exc_class():
            ended.append(("cancelled", anyio.current_time() - made_at))
            raise
        ended.append(("by itself", anyio.current_time() - made_at))

    made_at = anyio.current_time()
    batcher = of(handler, kind, batch_wait_timeout_s=5, cancel_abandoned=cancel_abandoned)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await kind.line_up(tasks, call, 0, 1)
        await anyio.sleep(leave_at)
        for caller in callers:
            caller.leave()
        await anyio.sleep(30)
        if cancel_abandoned:
            assert ended == [("cancelled", pytest.approx(max(5, leave_at)))]
        else:
            assert ended == [("by itself", pytest.approx(20))]
        assert batcher.statistics().batches_running == 0


@pytest.mark.parametrize(
    "options", [{}, {"max_queued_requests": 0, "overload": "wait"}], ids=["queued", "parked"]
)
async def test_who_stands_behind_one_who_has_just_left_is_taken(options: Any) -> None:
    """Who leaves before the slot had its turn was counted when it was woken."""
    unary = Kind(streams=False)
    for _ in range(ORDERS):
        batcher = of(Taker(unary), unary, max_batch_size=1, **options)
        async with opening(batcher) as (_, call, tasks):
            await settle()
            first, second = Caller(call(1)), Caller(call(2))
            tasks.start_soon(first.run)
            tasks.start_soon(second.run)
            tasks.start_soon(first.leaves)
            await settle()
            assert second.outcome == 2


@pytest.mark.parametrize("where", ["active", "not looked at", "in the queue"])
async def test_a_deadline_ends_a_request_wherever_it_is(kind: Kind, where: str) -> None:
    seen: list[Any] = []

    async def handler(batch: Any) -> None:
        if where == "active":
            seen.extend(await batch.join())
        await anyio.sleep(20)
        seen.extend(await batch.join())
        for request in batch.active:
            await kind.answer(request, request.item)

    batcher = of(handler, kind, max_batch_size=2, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        if where == "in the queue":
            await kind.line_up(tasks, call, 0, 0)
        late = await kind.line_up(tasks, call.options(timeout_s=5), 1)
        mate = await kind.line_up(tasks, call, 2)
        await anyio.sleep(6)
        assert isinstance(late[0].outcome, shoal.errors.DeadlineExceeded)
        assert late[0].ended_at - anyio.current_time() == pytest.approx(-1)
    assert mate[0].outcome == 2
    assert [request.item for request in seen if request.cancelled] == [1] * (where == "active")
    assert batcher.statistics().expired == 1


# Admission and options


async def test_the_room_of_the_open_batch_admits_requests_where_the_queue_has_no_room(kind):
    handler = Taker(kind)
    handler.hold()
    batcher = of(handler, kind, max_batch_size=3, batch_wait_timeout_s=5, max_queued_requests=0)
    async with batcher as call, anyio.create_task_group() as tasks:
        await settle()
        callers = []
        for item in range(3):
            callers += await kind.line_up(tasks, call, item)
            await anyio.sleep(1)
        assert isinstance(await outcome(kind.ask(call, 3)), shoal.errors.Overloaded)
        handler.gate.set()
        await settle()
        handler.hold()
        callers += await kind.line_up(tasks, call, 4)
        await anyio.sleep(6)
        closed_by_time = await outcome(kind.ask(call, 5))
        assert isinstance(closed_by_time, shoal.errors.Overloaded)
        handler.gate.set()
        await settle()
        assert handler.batches == [[0, 1, 2], [4]]
        assert [caller.outcome for caller in callers] == [0, 1, 2, 4]


async def test_a_batch_that_ended_early_has_no_room_for_those_who_wait_for_admission() -> None:
    go = anyio.Event()

    async def handler(batch: Any) -> None:
        requests = await batch.join()
        if batch.id == 1:
            await go.wait()
        else:
            await anyio.sleep(100)
        assert requests

    options: dict[str, Any] = {"batch_wait_timeout_s": None, "overload": "wait"}
    batcher = of(handler, Kind(streams=False), max_batch_size=2, max_queued_requests=0, **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, call(0))
        for item in range(1, 9):
            tasks.start_soon(Caller(call(item)).run)
        go.set()
        await settle()
        assert batcher.statistics().queued == 0
        assert batcher.statistics().running == 2
        tasks.cancel_scope.cancel()


async def test_options_change_the_batch_after_the_one_that_is_open(kind: Kind) -> None:
    handler = Taker(kind)
    batcher = of(handler, kind, max_batch_size=2, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        await kind.line_up(tasks, call, 0)
        await anyio.sleep(1)
        batcher.configure(batch_wait_timeout_s=5, max_batch_size=9)
        await anyio.sleep(6)
        assert handler.closed == []
        await kind.launch(tasks, call, 1)
        assert handler.reasons == [DispatchReason.FULL]
        await kind.line_up(tasks, call, 2, 3, 4)
        await anyio.sleep(10)
        assert handler.batches == [[0, 1], [2, 3, 4]]
        assert handler.closed == [7, 12]


async def test_options_that_mean_nothing_to_an_open_batch_are_refused(kind: Kind) -> None:
    with pytest.raises(ValueError, match="open"):
        of(Taker(kind), kind, bucket_by=hash)
    batcher = of(Taker(kind), kind)
    async with batcher:
        with pytest.raises(ValueError, match="open"):
            batcher.configure(bucket_by=hash)


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_a_handler_that_is_no_async_function_of_a_batch_is_refused(fill: Any) -> None:
    def plain(batch: Any) -> None: ...

    async def steps(batch: Any) -> Any:
        yield batch

    async def of_two(batch: Any, more: Any) -> None: ...

    async def of_none() -> None: ...

    make: Any = shoal.Batcher
    for wrong in (plain, steps, of_two, of_none):
        with pytest.raises(TypeError, match="async" if wrong in (plain, steps) else "batch alone"):
            make(wrong, fill=fill)
    with pytest.raises(ValueError, match="fill"):
        make(plain, fill="full")
    with pytest.raises(TypeError, match="streams"):
        make(plain, streams=True)


# What a handler can know and do


async def test_the_batch_tells_about_itself(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        assert (batch.id, batch.size, batch.reason) == (1, 1, DispatchReason.OPEN)
        requests = aiter(batch)
        first = await anext(requests)
        assert batch.active == [first]
        current = shoal.current_batch()
        assert (current.id, current.reason) == (1, DispatchReason.OPEN)
        second = await anext(requests)
        assert [request.item for request in current.requests] == ["a", "b"]
        assert (batch.size, current.size, batch.active) == (2, 2, [first, second])
        await kind.answer(first, "done")
        assert batch.active == [second]
        assert (first.ended, first.cancelled, second.ended) == (True, False, False)
        assert await anext(requests, None) is None
        assert (batch.reason, current.reason) == (DispatchReason.FLUSH, DispatchReason.FLUSH)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_a_task, batch.id)
        await kind.answer(second, "done")

    async def in_a_task(batch_id: int) -> None:
        assert shoal.current_batch().id == batch_id

    async with opening(of(handler, kind, batch_wait_timeout_s=None)) as (batcher, call, tasks):
        callers = await kind.launch(tasks, call, "a")
        callers += await kind.launch(tasks, call, "b")
        batcher.flush()
    assert [caller.outcome for caller in callers] == ["done", "done"]


async def test_a_request_tells_about_itself(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        async for request in batch:
            known = (
                request.metadata.get("who"),
                request.priority,
                request.cost,
                None if request.deadline is None else request.deadline - request.arrived_at,
            )
            assert repr(request.item) in repr(request)
            await kind.answer(request, known)

    async with of(handler, kind, priority_levels=3, max_batch_size=9, batch_size_fn=float) as call:
        assert await kind.ask(call, 2) == (None, 2, 2.0, None)
        call_options = call.options(priority=1, timeout_s=5, metadata={"who": "me"})
        assert await kind.ask(call_options, 3) == ("me", 1, 3.0, pytest.approx(5))


async def test_a_request_is_answered_once(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        request = await first_of(batch)
        if request.item == "finish":
            await kind.answer(request, "first")
        else:
            request.fail(ValueError("first"))
        with pytest.raises(RuntimeError, match="answered already"):
            request.finish()
        with pytest.raises(RuntimeError, match="answered already"):
            request.fail(ValueError("second"))
        with pytest.raises(RuntimeError, match="answered already"):
            await request.send("second")
        assert request.ended
        assert not request.cancelled

    async with of(handler, kind) as call:
        assert await kind.ask(call, "finish") == "first"
        error = await outcome(kind.ask(call, "fail"))
        assert (type(error), error.args) == (ValueError, ("first",))


async def test_an_answer_of_the_wrong_form_is_refused_and_changes_nothing(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        request = await first_of(batch)
        if kind.streams:
            with pytest.raises(TypeError, match="send"):
                request.finish("a result")
        else:
            with pytest.raises(TypeError, match="finish"):
                await request.send("an item")
        assert not request.ended
        await kind.answer(request, "right")

    async with of(handler, kind) as call:
        assert await kind.ask(call, 1) == "right"


async def test_who_has_left_can_be_answered_in_vain(kind: Kind) -> None:
    async def handler(batch: Any) -> None:
        requests = [*await batch.join(), *await batch.join()]
        await anyio.sleep(2)
        assert [request.cancelled for request in requests] == [True, True]
        for request in requests:
            if kind.streams:
                await request.send("dropped")
        requests[0].finish()
        requests[1].fail(ValueError())
        assert [request.cancelled for request in requests] == [True, True]
        done.append(True)

    done: list[bool] = []
    async with opening(of(handler, kind, batch_wait_timeout_s=9)) as (batcher, call, tasks):
        callers = await kind.launch(tasks, call, 0)
        callers += await kind.line_up(tasks, call, 1)
        await anyio.sleep(1)
        for caller in callers:
            caller.leave()
        await anyio.sleep(2)
        assert done == [True]
    assert batcher.statistics().cancelled == 2
    assert batcher.statistics().finished == batcher.statistics().failed == 0


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_however_a_handler_iterates_each_request_is_given_once(fill: Any) -> None:
    async def handler(batch: Any) -> None:
        first = await anext(aiter(batch))
        first.finish(("first", first.item))
        async for request in batch:
            request.finish(("rest", request.item))

    async with shoal.Batcher(handler, fill=fill) as call:
        with anyio.fail_after(100):
            assert await call.map(range(3)) == [("first", 0), ("rest", 1), ("rest", 2)]


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize("shared", [True, False])
async def test_several_tasks_can_take_requests_from_one_batch(fill: Any, shared: bool) -> None:
    async def handler(batch: Any) -> None:
        iterator = aiter(batch)

        async def work() -> None:
            async for request in iterator if shared else batch:
                await anyio.sleep(1)
                request.finish(request.item)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(work)

    async with shoal.Batcher(handler, fill=fill) as call:
        started = anyio.current_time()
        with anyio.fail_after(100):
            assert await call.map(range(8)) == list(range(8))
        assert anyio.current_time() - started == pytest.approx(2)


async def test_a_slot_lets_others_run_between_two_batches() -> None:
    runs = 0
    behind: list[int] = []

    async def handler(batch: Any) -> None:
        nonlocal runs
        runs += 1
        for request in batch.join_nowait():
            request.finish(runs)

    async def use(call: Any) -> None:
        ran = await call(1)
        behind.append(runs - ran)

    async with opening(handler, fill="continuous", max_batch_size=1) as (_, call, tasks):
        for _ in range(100):
            tasks.start_soon(use, call)
    assert runs == 100
    assert max(behind) <= 2


# Ways in


@shoal.batch(fill="open", batch_wait_timeout_s=1)
async def doubled(batch: shoal.OpenBatch[int, int]) -> None:
    async for request in batch:
        request.finish(2 * request.item)


@shoal.batch(fill="open", streams=True, batch_wait_timeout_s=1)
async def counted(batch: shoal.OpenBatch[int, int]) -> None:
    async for request in batch:
        for number in range(request.item):
            await request.send(number)
        request.finish()


class Model:
    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.sizes: list[int] = []

    @shoal.batch(fill="open", batch_wait_timeout_s=1)
    async def times(self, batch: shoal.OpenBatch[int, int]) -> None:
        requests = [request async for request in batch]
        self.sizes.append(len(requests))
        for request in requests:
            request.finish(self.factor * request.item)

    @shoal.batch(fill="continuous", streams=True)
    async def counts(self, batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await request.send(self.factor * request.item)
            request.finish()


async def test_a_decorated_function() -> None:
    async with shoal.open_batchers(doubled, counted):
        assert await doubled(2) == 4
        assert await doubled(item=3) == 6
        assert await doubled.map(range(12)) == [2 * item for item in range(12)]
        assert await doubled.options(timeout_s=5)(2) == 4
        async with counted(3) as stream:
            assert [number async for number in stream] == [0, 1, 2]
        with pytest.raises(TypeError):
            await doubled(1, 2)  # type: ignore[call-arg]
    with pytest.raises(shoal.errors.NotOpen):
        await doubled(1)


async def test_a_method_is_batched_for_each_instance() -> None:
    two, three = Model(2), Model(3)
    async with shoal.open_batchers(two.times, three.times, two.counts):
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, two.times(1), three.times(1), two.times(2))
        assert [caller.outcome for caller in callers] == [2, 3, 4]
        assert (two.sizes, three.sizes) == ([2], [1])
        async with two.counts(4) as stream:
            assert [number async for number in stream] == [8]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_program_without_an_event_loop_calls_an_open_batch(backend: str) -> None:
    with shoal.blocking(doubled, backend=backend) as call:
        assert call(4) == 8
    with shoal.blocking(counted, backend=backend) as call_stream, call_stream(2) as stream:
        assert list(stream) == [0, 1]


async def test_a_signature_gives_several_parameters() -> None:
    def times(left: int, right: int = 10) -> int: ...  # type: ignore[empty-body]

    async def handler(batch: Any) -> None:
        async for request in batch:
            left, right = request.item
            request.finish(left * right)

    make: Any = shoal.Batcher
    async with make(handler, fill="open", signature=times) as call:
        assert await call(2) == 20
        assert await call(right=3, left=2) == 6
        with pytest.raises(TypeError):
            await call()


# What is left behind


@pytest.mark.parametrize("wait_s", [0, 5, None])
@pytest.mark.parametrize("slots", [1, 3])
async def test_an_idle_batcher_does_nothing(kind: Kind, slots: int, wait_s: float | None) -> None:
    handler = Taker(kind)
    batcher = of(handler, kind, batch_wait_timeout_s=wait_s, max_concurrent_batches=slots)
    async with batcher as call:
        for _ in range(2):
            await settle()
            with watched() as activity:
                await anyio.sleep(HOUR_S)
            assert activity.anything == 0
            async with anyio.create_task_group() as tasks:
                await kind.launch(tasks, call, 1)
                with watched() as activity:
                    await anyio.sleep(HOUR_S)
                assert activity.anything == 0 or wait_s == 5, "the batch waits to be filled"
                batcher.flush()


async def finishes(batch: Any) -> None:
    async for request in batch:
        request.finish(request.item)


async def fails_each(batch: Any) -> None:
    async for request in batch:
        request.fail(ValueError(request.item))


async def crashes(batch: Any) -> None:
    async for request in batch:
        raise ValueError(request.item)


async def returns(batch: Any) -> None:
    await batch.join()


async def never_ends(batch: Any) -> None:
    await anyio.sleep_forever()


async def sends(batch: Any) -> None:
    async for request in batch:
        for _ in range(3):
            await request.send(request.item)
        request.finish()


async def sends_then_crashes(batch: Any) -> None:
    async for request in batch:
        await request.send(request.item)
        raise ValueError(request.item)


async def calls_in_vain(call: Any) -> None:
    with suppress(shoal.errors.Unfinished):
        await call(1)


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize(
    ("use", "handler", "options"),
    [
        (calls, finishes, {}),
        (calls, fails_each, {}),
        (calls, crashes, {}),
        (calls_in_vain, returns, {}),
        (leaves, never_ends, {}),
        (reads, sends, {}),
        (reads, sends, {"stream_buffer": 1}),
        (reads, sends_then_crashes, {}),
        (reads, fails_each, {}),
    ],
)
async def test_nothing_is_left_for_the_collector(fill, use, handler, options):
    options = {"graceful_shutdown_timeout_s": 0, "fill": fill, "streams": use is reads, **options}
    assert await found_after(use, handler, **options) == []


async def test_a_time_out_leaves_nothing_for_the_collector() -> None:
    assert await found_after(calls, never_ends, fill="open", handler_timeout_s=5) == []
