"""What Ray Serve's tests assert of requests (groups RI and RC), by handles on a controller.

Ray Serve's ``handle.cancel()`` is to cancel whoever awaits the call.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, launch, line_up, outcome, outcomes
from batching.scenes import Held, Recorder, settle
from conformance.replica_scenes import chain, living_tasks, served, service
from shoal.errors import ShutDown
from shoal.serving.controller.controller import Controller

# RI: whole requests.


@pytest.mark.parametrize(("replicas", "at_once"), [(1, 2), (2, 1)])
async def test_ri2_two_batches_of_five_are_in_flight_at_any_time(replicas, at_once):
    in_flight: list[int] = []
    seen: list[tuple[int, int]] = []

    async def handler(items: list[int]) -> list[int]:
        in_flight.append(len(items))
        await anyio.sleep(0.5)
        seen.append((len(in_flight), sum(in_flight)))
        await anyio.sleep(0.5)
        in_flight.remove(len(items))
        return items

    async with served(
        handler,
        num_replicas=replicas,
        max_concurrent_batches=at_once,
        max_batch_size=5,
        batch_wait_timeout_s=1,
    ) as handle:
        assert await outcomes(*map(handle.call, range(20))) == list(range(20))
    assert seen == [(2, 10)] * 4


async def test_ri8_each_batch_sees_the_contexts_of_its_requests():
    request_id: ContextVar[str] = ContextVar("request_id", default="")
    own: list[str] = []

    async def handler(items: list[int]) -> list[str]:
        own.append(request_id.get())
        requests = shoal.current_batch().requests
        assert len(requests) == 3
        return [request.context[request_id] for request in requests]

    async with served(
        handler, max_batch_size=3, max_concurrent_batches=2, batch_wait_timeout_s=1
    ) as handle:

        async def caller(number: int) -> str:
            request_id.set(f"id {number}")
            return await handle.call(number)

        got = await outcomes(*map(caller, range(6)))
    assert got == [f"id {number}" for number in range(6)]
    assert own == ["", ""]


class Costs:
    """Code whose first batch is held until all other calls are in line."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.batches: list[list[Any]] = []
        self.gate = anyio.Event()
        self._answer = answer

    async def __call__(self, items: list[Any]) -> list[Any]:
        if items == ["plug"]:
            await self.gate.wait()
            return items
        self.batches.append(items)
        return [self._answer(item) for item in items]


@pytest.mark.parametrize(
    ("cost", "answer", "most", "items", "answers", "total"),
    [
        pytest.param(
            lambda item: item[1],
            lambda item: 2 * item[0],
            100,
            [(1, 30), (2, 40), (3, 20), (4, 25)],
            [2, 4, 6, 8],
            115,
            id="ri9 sizes",
        ),
        pytest.param(
            len,
            sum,
            100,
            [[n] * nodes for n, nodes in enumerate((30, 40, 35, 50), start=1)],
            [30, 80, 105, 200],
            155,
            id="ri10 nodes",
        ),
        pytest.param(
            lambda text: len(text.split()),
            lambda text: len(text.split()),
            1000,
            ["word " * words for words in (5, 12, 1, 10)],
            [5, 12, 1, 10],
            28,
            id="ri11 words",
        ),
        pytest.param(
            lambda size: size, str, 10, [6, 6, 3, 4], ["6", "6", "3", "4"], 19, id="ri14 no fit"
        ),
        pytest.param(
            lambda size: size,
            lambda size: size,
            100,
            [10, 20, 50, 15, 90, 5],
            [10, 20, 50, 15, 90, 5],
            190,
            id="ri15 tokens",
        ),
    ],
)
async def test_ri9_to_ri15_batches_are_bounded_by_what_their_items_cost(
    cost, answer, most, items, answers, total
):
    code = Costs(answer)
    size = lambda item: 1 if item == "plug" else cost(item)  # noqa: E731
    async with (
        served(code, max_batch_size=most, batch_size_fn=size) as handle,
        anyio.create_task_group() as tasks,
    ):
        await launch(tasks, handle.call("plug"))
        callers = await launch(tasks, *map(handle.call, items))
        code.gate.set()
        await settle()
        assert [caller.outcome for caller in callers] == answers
    loads = [sum(map(cost, batch)) for batch in code.batches]
    assert sum(loads) == total
    assert max(loads) <= most


async def test_ri13_an_item_larger_than_a_batch_is_refused_alone(recorder):
    async with served(recorder, max_batch_size=10, batch_size_fn=lambda size: size) as handle:
        refused, answered = await outcomes(handle.call(15), handle.call(10))
    assert type(refused) is shoal.errors.ItemTooLarge
    assert answered == 10
    assert recorder.batches == [[10]]


# RC1-RC9: callers that leave.


async def test_rc4_rc6_a_call_that_is_cancelled_in_line_never_reaches_the_handler(held):
    async with served(held, max_batch_size=1) as handle, anyio.create_task_group() as tasks:
        first, second = await launch(tasks, handle.call(1), handle.call(2))
        await second.gone()
        assert second.outcome == LEFT
        held.gate.set()
    assert first.outcome == 1
    assert held.batches == [[1]]


async def test_rc7_a_stream_that_was_closed_has_no_next_item(steps):
    async with served(steps.handler) as handle, handle.stream("a") as stream:
        steps.step("hi")
        assert await anext(stream) == "hi"
        await stream.aclose()
        await settle()
        assert steps.closed
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_rc9_a_task_started_outside_the_request_is_not_cancelled_with_it(held):
    answers: list[Any] = []
    async with anyio.create_task_group() as background, Controller() as controller:
        inner = await service(controller, "inner", held)
        running = Held()

        async def work(item: int) -> None:
            answers.append(await inner.call(item))

        async def code(items: list[int]) -> list[int]:
            background.start_soon(work, items[0])
            return await running(items)

        handle = await service(controller, "outer", code)
        with anyio.move_on_after(1):
            await handle.call(1)
        await settle()
        assert running.cancelled == [[1]]
        assert held.cancelled == []
        await held.release()
        assert answers == [1]


# RC10-RC12: overload.


async def test_rc12_a_rejection_passes_unchanged_through_a_calling_service():
    bound = {"max_batch_size": 1, "max_queued_requests": 0}
    async with chain(inner=bound) as (handle, outer, inner), anyio.create_task_group() as tasks:
        (busy,) = await launch(tasks, outer.handle.call("busy"))
        with anyio.fail_after(1):
            direct = await outcome(outer.handle.call(1))
            got = await outcome(handle.call(1))
        assert type(got) is type(direct) is shoal.errors.Overloaded
        assert str(got) == str(direct)
        inner.gate.set()
    assert busy.outcome == "busy"
    assert inner.batches == [["busy"]]


# RC13-RC19: time-outs.


async def test_rc15_rc19_a_running_and_a_queued_call_time_out_and_then_one_is_served(held):
    async with served(held, max_batch_size=1) as handle:
        limited = handle.options(timeout_s=0.5)
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, limited.call(1), limited.call(2))
        assert [type(one.outcome) for one in callers] == [shoal.errors.DeadlineExceeded] * 2
        held.gate.set()
        assert await limited.call(3) == 3
    assert held.batches == [[1], [3]]


async def test_rc17_nothing_is_left_of_calls_that_timed_out():
    async with (
        Controller() as controller,
        chain(controller, max_batch_size=2) as (handle, _, inner),
    ):
        limited = handle.options(timeout_s=0.5)
        await outcome(limited.call(0))
        await settle()
        before = living_tasks()
        got = await outcomes(*map(limited.call, range(10)))
        assert [type(one) for one in got] == [shoal.errors.DeadlineExceeded] * 10
        await settle()
        assert living_tasks() == before
        status = controller.status_now()
        for backend in status.backends.values():
            assert (backend.queued, backend.ongoing) == (0, 0)
        assert inner.cancelled == inner.batches


async def test_rc18_a_time_out_cancels_the_handler_and_what_it_calls():
    async with chain() as (handle, outer, inner):
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await handle.options(timeout_s=1).call(1)
        await settle()
        assert outer.cancelled == inner.cancelled == [[1]]


# RC20-RC24: streams.


# RC25-RC31: the end of a controller.


class Ending(Held):
    """Held code that notes the steps of its end."""

    def __init__(self, name: str, steps: list[str]) -> None:
        super().__init__()
        self._name = name
        self._steps = steps

    async def __call__(self, items: list[Any]) -> list[Any]:
        try:
            return await super().__call__(items)
        finally:
            self._steps.append(f"{self._name} ran")

    async def close(self) -> None:
        self._steps.append(f"{self._name} closed")


async def test_rc25_work_ends_before_its_replica_and_callers_end_before_those_they_call():
    steps: list[str] = []
    called, caller = Ending("called", steps), Ending("caller", steps)
    async with anyio.create_task_group() as tasks:
        async with Controller() as controller:
            inner = await service(controller, "called", called)
            outer = await service(controller, "caller", caller)
            waiting = await launch(tasks, outer.call(1), inner.call(1))
            tasks.start_soon(controller.shutdown)
            await settle()
            assert steps == []
            caller.gate.set()
            await settle()
            assert steps == ["caller ran", "caller closed"]
            called.gate.set()
        assert steps == ["caller ran", "caller closed", "called ran", "called closed"]
    assert [one.outcome for one in waiting] == [1, 1]


async def test_rc25_the_steps_of_a_backends_end_share_its_one_budget():
    steps: list[str] = []
    held = Ending("it", steps)
    async with Controller() as controller:
        handle = await service(controller, "b", held, graceful_shutdown_timeout_s=1)
        async with anyio.create_task_group() as tasks:
            (caller,) = await launch(tasks, handle.call(1))
            await controller.shutdown()
            assert anyio.current_time() == pytest.approx(1)
    assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
    assert steps == ["it ran", "it closed"]


async def test_rc26_what_does_not_end_in_time_is_cancelled_and_the_shutdown_completes(held):
    async with anyio.create_task_group() as tasks:
        async with served(held, graceful_shutdown_timeout_s=0.05) as handle:
            (caller,) = await launch(tasks, handle.call(1))
        assert anyio.current_time() == pytest.approx(0.05)
    assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
    assert held.cancelled == [[1]]


async def test_rc27_a_replica_that_never_started_is_only_ended():
    steps: list[str] = []

    class Starting(Ending):
        async def warm_up(self) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                steps.append("start cancelled")

    async with anyio.create_task_group() as tasks:
        async with Controller() as controller:
            (creator,) = await launch(tasks, controller.create_backend("b", Starting("it", steps)))
            started = anyio.current_time()
        assert anyio.current_time() == started
        await settle()
        assert isinstance(creator.outcome, shoal.errors.ShoalError)
    assert steps == ["start cancelled"]


async def test_rc30_an_idle_replica_ends_without_waiting_for_a_health_check():
    async with Controller() as controller:
        handle = await service(controller, "b", Recorder(), health_check_period_s=10)
        await handle.call(1)
        await controller.shutdown()
        assert anyio.current_time() == 0


async def test_rc31_from_its_end_on_only_code_that_is_being_answered_makes_calls():
    async with anyio.create_task_group() as tasks, Controller() as controller:
        gate = anyio.Event()
        inner = await service(controller, "inner", Recorder())

        async def code(items: list[int]) -> list[int]:
            await gate.wait()
            return [await inner.call(item) for item in items]

        outer = await service(controller, "outer", code)
        (caller,) = await launch(tasks, outer.call(1))
        tasks.start_soon(controller.shutdown)
        await settle()
        for handle in (inner, outer):
            assert type(await outcome(handle.call(2))) is ShutDown
        gate.set()
    assert caller.outcome == 1
