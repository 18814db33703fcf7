"""What Ray Serve's tests of whole requests assert (groups RI and RC), without a server."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import shoal
from batching.scenes import (
    LEFT,
    PENDING,
    Held,
    Recorder,
    Steps,
    line_up,
    outcome,
    outcomes,
    read_all,
    settle,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


async def test_ri1_calls_at_once_share_batches() -> None:
    handler = Recorder()
    async with shoal.Batcher(handler, max_batch_size=5, batch_wait_timeout_s=1) as call:
        await outcomes(*map(call, range(20)))
    assert len(handler.batches) < 20


async def test_ri2_two_batches_of_five_are_in_flight_at_any_time() -> None:
    in_flight: list[int] = []
    seen: list[tuple[int, int]] = []

    async def handler(items: list[int]) -> list[int]:
        in_flight.append(len(items))
        await anyio.sleep(0.5)
        seen.append((len(in_flight), sum(in_flight)))
        await anyio.sleep(0.5)
        in_flight.remove(len(items))
        return items

    batcher = shoal.Batcher(
        handler, max_concurrent_batches=2, max_batch_size=5, batch_wait_timeout_s=1
    )
    async with batcher as call:
        assert sorted(await outcomes(*map(call, range(20)))) == list(range(20))
    assert seen == [(2, 10)] * 4


async def test_ri3_a_handler_that_returns_a_number_is_a_type_error_of_the_caller() -> None:
    async def handler(items: list[int]) -> Any:
        return 5

    async with shoal.Batcher(handler) as call:
        with pytest.raises(TypeError):
            await call(1)


async def test_ri4_items_of_a_stream_need_not_be_hashable() -> None:
    async def handler(prompts: list[str]) -> AsyncIterator[list[dict[str, str]]]:
        for _ in range(10):
            yield [{"text": prompt} for prompt in prompts]

    async with shoal.Batcher(handler, max_batch_size=4) as call:  # noqa: SIM117
        async with anyio.create_task_group() as tasks:
            readers = await read_all(tasks, *map(call, "abcd"))
    texts = ["".join(item["text"] for item in reader.items) for reader in readers]
    assert texts == ["a" * 10, "b" * 10, "c" * 10, "d" * 10]


async def test_ri6_every_stream_gets_its_chunks_in_order() -> None:
    async def handler(items: list[int]) -> AsyncIterator[list[str]]:
        for number in range(10):
            yield [str(number)] * len(items)

    async with shoal.Batcher(handler, max_batch_size=3, batch_wait_timeout_s=1) as call:  # noqa: SIM117
        async with anyio.create_task_group() as tasks:
            readers = await read_all(tasks, *map(call, range(3)))
    assert ["".join(reader.items) for reader in readers] == ["0123456789"] * 3


async def test_ri8_each_batch_sees_the_contexts_of_its_requests() -> None:
    request_id: ContextVar[str] = ContextVar("request_id", default="")
    own: list[str] = []

    async def handler(items: list[int]) -> list[str]:
        own.append(request_id.get())
        requests = shoal.current_batch().requests
        assert len(requests) == 3
        return [request.context[request_id] for request in requests]

    async def caller(number: int) -> str:
        request_id.set(f"id {number}")
        return await call(number)

    batcher = shoal.Batcher(
        handler, max_batch_size=3, max_concurrent_batches=2, batch_wait_timeout_s=1
    )
    async with batcher as call:
        got = await outcomes(*map(caller, range(6)))
    assert got == [f"id {number}" for number in range(6)]
    assert own == ["", ""]


async def test_ri12_ten_calls_get_their_own_results() -> None:
    async with shoal.Batcher(Recorder(lambda item: 2 * item), max_batch_size=5) as call:
        assert await outcomes(*map(call, range(10))) == list(range(0, 20, 2))


async def test_rc3_rc5_cancelling_a_running_call_cancels_its_handler_and_what_it_calls() -> None:
    inner = Held()
    seen: list[str] = []

    async with shoal.Batcher(inner) as call_inner:

        async def outer(items: list[int]) -> list[int]:
            try:
                return [await call_inner(item) for item in items]
            except anyio.get_cancelled_exc_class():
                seen.append("outer")
                raise

        async with shoal.Batcher(outer) as call, anyio.create_task_group() as tasks:
            (caller,) = await line_up(tasks, call(1))
            await settle()
            caller.leave()
            await settle()
            assert caller.outcome == LEFT
            assert seen == ["outer"]
            assert inner.cancelled == [[1]]


async def test_rc4_rc6_a_call_that_is_cancelled_in_line_never_reaches_the_handler() -> None:
    held = Held()
    async with shoal.Batcher(held, max_batch_size=1) as call, anyio.create_task_group() as tasks:
        first, second = await line_up(tasks, call(1), call(2))
        await settle()
        second.leave()
        await settle()
        assert second.outcome == LEFT
        held.gate.set()
    assert first.outcome == 1
    assert held.batches == [[1]]


async def test_rc7_cancelling_a_stream_cancels_its_generator() -> None:
    with Steps() as steps:
        async with shoal.Batcher(steps.handler) as call, anyio.create_task_group() as tasks:
            (reader,) = await read_all(tasks, call("a"))
            steps.step("hi")
            await settle()
            assert reader.items == ["hi"]
            reader.leave()
            await settle()
            assert reader.outcome == LEFT
            assert steps.closed


async def test_rc9_a_task_started_outside_the_request_is_not_cancelled_with_it() -> None:
    held, finished = Held(), anyio.Event()

    async with anyio.create_task_group() as background:

        async def work() -> None:
            await anyio.sleep(5)
            finished.set()

        async def handler(items: list[int]) -> list[int]:
            background.start_soon(work)
            return await held(items)

        async with shoal.Batcher(handler) as call:
            with anyio.move_on_after(1):
                await call(1)
            await settle()
            assert held.cancelled == [[1]]
    assert finished.is_set()


async def test_rc10_above_the_bound_calls_are_rejected_at_once() -> None:
    held = Held()
    async with (
        shoal.Batcher(held, max_batch_size=1, max_queued_requests=1) as call,
        anyio.create_task_group() as tasks,
    ):
        (running,) = await line_up(tasks, call("running"))
        await settle()
        (queued,) = await line_up(tasks, call("queued"))
        started = anyio.current_time()
        got = await outcomes(*map(call, range(10)))
        assert anyio.current_time() == started
        assert [type(one) for one in got] == [shoal.errors.Overloaded] * 10
        held.gate.set()
    assert (running.outcome, queued.outcome) == ("running", "queued")


async def test_rc12_a_rejection_passes_unchanged_through_a_calling_handler() -> None:
    held = Held()
    inner = shoal.Batcher(held, max_batch_size=1, max_queued_requests=0)
    async with inner as call_inner, anyio.create_task_group() as tasks:
        await line_up(tasks, call_inner("busy"))
        await settle()

        async def outer(items: list[int]) -> list[Any]:
            return [await call_inner(item) for item in items]

        async with shoal.Batcher(outer) as call:
            got = await outcome(call(1))
        assert type(got) is shoal.errors.Overloaded
        assert "max_queued_requests=0" in str(got)
        held.gate.set()


async def test_rc13_fast_calls_are_answered_within_their_time_out() -> None:
    async with shoal.Batcher(Recorder(), request_timeout_s=5) as call:
        assert await outcomes(*map(call, range(10))) == list(range(10))


async def test_rc14_a_call_whose_handler_hangs_times_out() -> None:
    async with shoal.Batcher(Held(), request_timeout_s=0.1) as call:
        with pytest.raises(TimeoutError):
            await call(1)


async def test_rc15_a_running_and_a_queued_call_time_out_and_then_one_is_served() -> None:
    held = Held()
    async with shoal.Batcher(held, max_batch_size=1, request_timeout_s=0.5) as call:
        got = await outcomes(call(1), call(2))
        assert [type(one) for one in got] == [shoal.errors.DeadlineExceeded] * 2
        held.gate.set()
        assert await call(3) == 3


async def test_rc17_nothing_is_left_of_calls_that_timed_out() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=2, request_timeout_s=0.5)
    async with batcher as call:
        await outcomes(*map(call, range(10)))
        await settle()
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.running, statistics.batches_running) == (0, 0, 0)
        assert statistics.expired == 10


async def test_rc18_a_time_out_cancels_the_handler_and_what_it_calls() -> None:
    inner = Held()
    async with shoal.Batcher(inner) as call_inner:

        async def outer(items: list[int]) -> list[int]:
            return [await call_inner(item) for item in items]

        async with shoal.Batcher(outer, request_timeout_s=1) as call:
            with pytest.raises(shoal.errors.DeadlineExceeded):
                await call(1)
            await settle()
            assert inner.cancelled == [[1]]


async def test_rc19_what_times_out_in_line_never_reaches_the_handler() -> None:
    held = Held()
    async with shoal.Batcher(held, max_batch_size=1) as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(1))
        await settle()
        assert isinstance(
            await outcome(call.options(timeout_s=1)(2)), shoal.errors.DeadlineExceeded
        )
        held.gate.set()
    assert held.batches == [[1]]


async def test_rc21_chunks_arrive_one_by_one_and_streams_are_independent() -> None:
    with Steps() as one, Steps() as other:
        async with (
            shoal.Batcher(one.handler) as call,
            shoal.Batcher(other.handler) as call_other,
            anyio.create_task_group() as tasks,
        ):
            first, second = await read_all(tasks, call(1), call_other(2))
            one.step("1")
            await settle()
            assert (first.items, second.items) == (["1"], [])
            await anyio.sleep(0.01)
            assert first.items == ["1"]
            one.step("2")
            other.step("1")
            await settle()
            assert (first.items, second.items) == (["1", "2"], ["1"])
            one.end()
            other.end()


async def test_rc24_a_generator_is_not_cancelled_while_its_reader_stays() -> None:
    with Steps() as steps:
        async with shoal.Batcher(steps.handler) as call, anyio.create_task_group() as tasks:
            (reader,) = await read_all(tasks, call("a"))
            await anyio.sleep(1000)
            assert not steps.closed
            assert reader.outcome == PENDING
            reader.leave()
            await settle()
            assert steps.closed
