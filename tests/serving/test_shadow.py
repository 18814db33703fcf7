"""Shadow traffic: copies that never delay, fail or reorder what they are copies of."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from batching.callers import line_up, outcome, outcomes, read
from batching.scenes import Held, settle
from serving.scenes import Stage, echo, serving, serving_tasks, under_way
from shoal.core.traffic import Shadow
from shoal.errors import InUse, NoSuchName
from shoal.serving.controller.controller import Controller
from shoal.serving.shadow import MOST_COPIES
from shoal.serving.state_records import EndpointRecord
from shoal.status import ShadowStatus


async def shadowed(
    controller: Controller, code: Any, stage: Stage | None = None, share: float = 1, **more: Any
) -> Stage:
    """Gives the endpoint ``e`` a shadow ``s`` of some code."""
    stage = stage or Stage()
    compare = more.pop("compare", None)
    await controller.create_backend("s", code, config={"placement": stage, **more})
    await controller.shadow_traffic("e", "s", share, compare=compare)
    return stage


@asynccontextmanager
async def shadowing(code: Any, **more: Any) -> AsyncGenerator[Any]:
    """Serves code that echoes, with a shadow of some code."""
    async with serving(echo) as (controller, handle, _):
        yield controller, handle, await shadowed(controller, code, **more)


def counts(controller: Controller) -> ShadowStatus:
    [status] = controller.status_now().endpoints["e"].shadows
    return status


async def negated(items: list[int]) -> list[int]:
    return [-item for item in items]


async def broken(items: list[int]) -> list[int]:
    raise ZeroDivisionError(items)


def equal(first: Any, second: Any) -> bool:
    return bool(first == second)


async def test_each_request_is_copied_and_its_answer_dropped() -> None:
    async with shadowing(negated) as (controller, handle, stage):
        assert [await handle.call(item) for item in range(5)] == [*range(5)]
        await settle()
        assert sorted(item for _, items in stage.calls for item in items) == [*range(5)]
        assert counts(controller).sent == 5
        assert counts(controller).failed == 0


async def test_so_large_a_share_is_copied() -> None:
    async with shadowing(echo, share=0.3, max_batch_size=100) as (controller, handle, _):
        for _ in range(40):
            await outcomes(*[handle.call(item) for item in range(50)])
            await settle()
        assert 450 < counts(controller).sent < 750
        assert counts(controller).dropped == 0


async def test_a_slow_shadow_delays_nothing() -> None:
    async with serving(echo) as (controller, handle, _):
        held = Held()
        await shadowed(controller, held)
        for item in range(10):
            assert await handle.call(item) == item
        assert anyio.current_time() == 0
        held.gate.set()


async def of_other_parameters(left: list[int], right: list[int]) -> list[int]:
    return left


@pytest.mark.parametrize("code", [broken, of_other_parameters])
async def test_a_shadow_that_fails_fails_nothing(code: Any) -> None:
    async with shadowing(code) as (controller, handle, _):
        assert await outcomes(*[handle.call(item) for item in range(10)]) == [*range(10)]
        await settle()
        assert (counts(controller).sent, counts(controller).failed) == (10, 10)
        endpoint = controller.status_now().endpoints["e"]
        assert (endpoint.requests, endpoint.errors) == (10, 0)


async def test_a_shadow_without_a_replica_fails_nothing() -> None:
    async with shadowing(echo) as (_, handle, stage):
        stage.replicas[0].die()
        assert await outcomes(*[handle.call(item) for item in range(10)]) == [*range(10)]


async def test_a_shadow_does_not_change_the_order() -> None:
    order: list[int] = []

    async def noted(items: list[int]) -> list[int]:
        order.extend(items)
        await anyio.sleep(0.1)
        return items

    async with serving(noted, max_batch_size=2) as (controller, handle, _):
        await shadowed(controller, echo)
        async with anyio.create_task_group() as tasks:
            await line_up(tasks, *[handle.call(item) for item in range(20)])
        assert order == [*range(20)]


async def test_copies_are_bounded_and_what_goes_beyond_is_counted() -> None:
    async with serving(echo, max_batch_size=1000) as (controller, handle, _):
        held = Held()
        await shadowed(controller, held, max_queued_requests=None)
        number = MOST_COPIES + 44
        assert await outcomes(*[handle.call(item) for item in range(number)]) == [*range(number)]
        await settle()
        assert counts(controller).sent == MOST_COPIES
        assert counts(controller).dropped == 44
        await held.release()
        await handle.call(1)
        assert counts(controller).sent == MOST_COPIES + 1


async def test_a_copy_does_not_go_on_for_ever() -> None:
    async with serving(echo) as (controller, handle, _):
        held = Held()
        await shadowed(controller, held)
        await handle.call(1)
        await anyio.sleep(1000)
        assert counts(controller).failed == 1
        assert held.cancelled == [[1]]


async def test_a_caller_that_leaves_does_not_end_the_copy() -> None:
    primary, copy = Held(), Held()
    async with serving_tasks(primary) as (controller, handle, _, tasks):
        await shadowed(controller, copy, compare=lambda first, second: True)
        [caller] = await under_way(tasks, handle.call(1))
        await caller.gone()
        await copy.release()
        assert copy.passed == [[1]]
        assert (counts(controller).agreed, counts(controller).disagreed) == (0, 0)


async def test_answers_are_compared_that_of_the_endpoint_first() -> None:
    seen: list[Any] = []

    async def odd_ones_wrong(items: list[int]) -> list[int]:
        return [item + item % 2 for item in items]

    def compare(first: int, second: int) -> bool:
        seen.append((first, second))
        return first == second

    async with shadowing(odd_ones_wrong, compare=compare) as (controller, handle, _):
        for item in range(4):
            await handle.call(item)
        await settle()
        assert (counts(controller).agreed, counts(controller).disagreed) == (2, 2)
        assert seen == [(0, 0), (1, 2), (2, 2), (3, 4)]


async def test_answers_are_compared_whichever_comes_first(held: Held) -> None:
    async with serving_tasks(held) as (controller, handle, _, tasks):
        await shadowed(controller, echo, compare=equal)
        await line_up(tasks, handle.call(1))
        await anyio.sleep(10)
        assert counts(controller).agreed == 0
        await held.release()
        assert counts(controller).agreed == 1


async def test_a_request_that_fails_is_not_compared() -> None:
    async with serving(broken) as (controller, handle, _):
        await shadowed(controller, echo, compare=lambda first, second: True)
        await outcome(handle.call(1))
        await settle()
        status = counts(controller)
        assert (status.sent, status.agreed, status.disagreed, status.failed) == (1, 0, 0, 0)


async def test_a_comparison_that_raises_is_counted_as_failed() -> None:
    def compare(first: int, second: int) -> bool:
        raise ZeroDivisionError

    async with shadowing(echo, compare=compare) as (controller, handle, _):
        assert await handle.call(1) == 1
        await settle()
        assert (counts(controller).failed, counts(controller).agreed) == (1, 0)


async def test_copies_of_streams_end_and_leave_nothing() -> None:
    async def code(items: list[int]) -> AsyncGenerator[list[int], None]:
        yield items
        yield items

    async with serving(code) as (controller, handle, _):
        stage = await shadowed(controller, code, compare=equal)

        async def tasks_after() -> int:
            assert await read(handle.stream(1)) == [1, 1]
            await settle()
            return len(anyio.get_running_tasks())

        before = await tasks_after()
        assert [await tasks_after() for _ in range(5)] == [before] * 5
        assert len(stage.calls) == 6
        assert (counts(controller).agreed, counts(controller).disagreed) == (0, 0)


async def test_methods_are_copied_to_the_same_method() -> None:
    class Code:
        async def __call__(self, items: list[int]) -> list[int]:
            return items

        async def other(self, items: list[int]) -> list[int]:
            return [-item for item in items]

    async with serving(Code) as (controller, handle, _):
        stage = await shadowed(controller, Code, compare=equal)
        assert await handle.options(method_name="other").call(3) == -3
        await settle()
        assert stage.replicas[0].calls == [("other", [3])]
        assert counts(controller).agreed == 1


async def test_the_latencies_of_copies_are_summed() -> None:
    async def slow(items: list[int]) -> list[int]:
        await anyio.sleep(2)
        return items

    async with shadowing(slow) as (controller, handle, _):
        await handle.call(1)
        await anyio.sleep(10)
        await handle.call(1)
        await anyio.sleep(10)
        assert counts(controller).latency_s == pytest.approx(4)


async def test_none_stops_it() -> None:
    async with shadowing(echo) as (controller, handle, stage):
        await handle.call(1)
        await controller.shadow_traffic("e", "s", 0)
        await handle.call(2)
        await settle()
        assert [items for _, items in stage.calls] == [[1]]
        assert controller.status_now().endpoints["e"].shadows == []
        await controller.delete_backend("s")


async def test_to_stop_what_is_not_there_is_no_mistake() -> None:
    async with serving(echo) as (controller, _, _):
        await controller.shadow_traffic("e", "b", 0)
        assert (await controller.list_endpoints())["e"]["shadows"] == {}


async def test_an_endpoint_is_declared_without_the_shadows_that_take_nothing() -> None:
    async with serving(echo) as (controller, _, _):
        shadows = {"b": Shadow(0, "builtins:len")}
        await controller.declare_endpoint(EndpointRecord(name="f", shadows=shadows))
        assert (await controller.list_endpoints())["f"]["shadows"] == {}
        assert controller.status_now().endpoints["f"].shadows == []


async def test_a_change_goes_on_counting() -> None:
    async with shadowing(echo) as (controller, handle, _):
        await handle.call(1)
        await settle()
        await controller.shadow_traffic("e", "s", 1, compare=lambda first, second: True)
        await handle.call(1)
        await settle()
        assert (counts(controller).sent, counts(controller).agreed) == (2, 1)
        assert (await controller.list_endpoints())["e"]["shadows"] == {"s": 1}


@pytest.mark.parametrize(("before", "after"), [(equal, None), (None, equal)])
async def test_copies_under_way_keep_their_comparison(before: Any, after: Any, held: Held) -> None:
    async with serving_tasks(held) as (controller, handle, _, tasks):
        await shadowed(controller, echo, compare=before)
        (caller,) = await under_way(tasks, handle.call(1))
        await controller.shadow_traffic("e", "s", 1, compare=after)
        await held.release()
        assert caller.outcome == 1
        assert counts(controller).agreed == (before is equal)
        assert await handle.call(2) == 2


async def test_several_shadows_each_get_a_copy() -> None:
    async with serving(echo) as (controller, handle, _):
        first = await shadowed(controller, echo)
        second = Stage()
        await controller.create_backend("t", echo, config={"placement": second})
        await controller.shadow_traffic("e", "t", 1)
        await handle.call(1)
        await settle()
        assert len(first.calls) == len(second.calls) == 1


async def test_a_backend_gets_no_copy_of_what_it_answers_itself() -> None:
    async with serving(echo) as (controller, handle, stage):
        await controller.shadow_traffic("e", "b", 1)
        assert await outcomes(*[handle.call(item) for item in range(10)]) == [*range(10)]
        await anyio.sleep(1)
        assert sum(len(items) for _, items in stage.calls) == 10
        other = Stage()
        await controller.create_backend("c", echo, config={"placement": other})
        await controller.set_traffic("e", {"c": 1})
        await outcomes(*[handle.call(item) for item in range(5)])
        await anyio.sleep(1)
        assert sum(len(items) for _, items in stage.calls) == 15
        assert sum(len(items) for _, items in other.calls) == 5


async def test_a_backend_that_is_shadowed_is_in_use() -> None:
    async with serving(echo) as (controller, _, _):
        await shadowed(controller, echo)
        with pytest.raises(InUse, match="traffic of e"):
            await controller.delete_backend("s", force=True)


async def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    async def later(first: int, second: int) -> bool:
        return first == second

    async with serving(echo) as (controller, _, _):
        shadow: Any = controller.shadow_traffic
        for share in (-0.1, 1.1, float("nan")):
            with pytest.raises(ValueError, match="from 0 to 1"):
                await shadow("e", "b", share)
        for share in ("0.5", None, True):
            with pytest.raises(TypeError, match="number"):
                await shadow("e", "b", share)
        with pytest.raises(TypeError, match="compare"):
            await shadow("e", "b", 1, compare=5)
        with pytest.raises(TypeError, match="compare"):
            await shadow("e", "b", 1, compare=later)
        with pytest.raises(ValueError, match="no module"):
            await shadow("e", "b", 1, compare="no.such:thing")
        with pytest.raises(NoSuchName, match="there are: b"):
            await shadow("e", "x", 1)
        with pytest.raises(NoSuchName, match="there are: e"):
            await shadow("x", "b", 1)
        assert (await controller.list_endpoints())["e"]["shadows"] == {}


async def test_a_compare_is_given_by_its_import_path() -> None:
    async with shadowing(echo, compare="operator:eq") as (controller, handle, _):
        await handle.call(1)
        await settle()
        assert (counts(controller).agreed, counts(controller).compare) == (1, "operator:eq")
