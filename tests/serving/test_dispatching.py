"""Which replica runs a batch, and what becomes of it when that replica dies."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, line_up, outcome, outcomes, read
from batching.scenes import Held, settle
from serving.scenes import (
    Gated,
    ScriptedReplica,
    Stage,
    deployed,
    echo,
    failing,
    serving,
    serving_tasks,
    slowly,
    under_way,
)
from shoal.batching.current import current_replica_tag, running_replica
from shoal.core.policies.rule import SizeOrWait
from shoal.core.policy import Dispatch
from shoal.errors import BackendUnavailable, BatcherClosed, ReplicaDied, WrongResultType
from shoal.serving.controller.endpoints import EndpointHandle

PAIRS: Any = {"max_batch_size": 2, "batch_wait_timeout_s": None}


class Deadly:
    """Code that kills its replica when it meets a certain item, a second after it has begun."""

    def __init__(self, stage: Stage, *killers: int) -> None:
        self._stage = stage
        self._killers = {*killers}

    async def __call__(self, items: list[int]) -> list[int]:
        await anyio.sleep(1)
        if self._killers & {*items}:
            self._replica().die()
            await anyio.sleep_forever()
        return [-item for item in items]

    def _replica(self) -> ScriptedReplica:
        tag = running_replica.get().replica
        return next(replica for replica in self._stage.replicas if replica.tag == tag)


async def read_until_a_death(stage: Stage, handle: EndpointHandle) -> list[list[Any]]:
    """Reads two streams, whose replica dies when each has made a step."""
    results: list[list[Any]] = []

    async def reader(item: int) -> None:
        results.append(await read(handle.stream(item)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader, 0)
        tasks.start_soon(reader, 1)
        await anyio.sleep(0.5)
        stage.replicas[0].die()
    return results


async def test_ri3_an_error_about_results_names_the_backend() -> None:
    async def five(_: list[int]) -> Any:
        return 5

    async with serving(shoal.accept_batch(five)) as (_, handle, _):
        with pytest.raises(WrongResultType, match="the handler b was given 1 items"):
            await handle.call(1)


async def test_batches_go_to_idle_replicas_in_turn() -> None:
    async with serving(echo, num_replicas=3) as (_, handle, stage):
        for item in range(6):
            assert await handle.call(item) == item
        assert [number for number, _ in stage.calls] == [0, 1, 2, 0, 1, 2]


async def test_requests_pile_up_while_all_replicas_are_busy(held: Held) -> None:
    async with serving_tasks(held, num_replicas=2, max_batch_size=4) as (_, handle, stage, tasks):
        await under_way(tasks, handle.call(0))
        await under_way(tasks, handle.call(1))
        await under_way(tasks, *[handle.call(item) for item in range(2, 8)])
        assert stage.calls == [(0, [0]), (1, [1])]
        await held.release()
        assert [items for _, items in stage.calls] == [[0], [1], [2, 3, 4, 5], [6, 7]]


async def test_no_more_calls_than_allowed_wait_in_the_queue_of_a_busy_backend() -> None:
    queued: list[int] = []

    async def noting(items: list[int]) -> list[int]:
        queued.append(statistics().queued)
        await anyio.sleep(1)
        return items

    limits = {"max_batch_size": 1, "max_queued_requests": 1, "overload": "wait"}
    async with serving(shoal.accept_batch(noting), **limits) as (controller, handle, _):
        statistics = controller.backends["b"].method_batchers["__call__"].batcher.statistics
        async with anyio.create_task_group() as tasks:
            for item in range(6):
                tasks.start_soon(handle.call, item)
    assert len(queued) == 6
    assert max(queued) == 1


async def test_a_busy_replica_does_not_hold_up_an_idle_one() -> None:
    async with serving_tasks(slowly, num_replicas=2, max_batch_size=1) as (_, handle, _, tasks):
        await line_up(tasks, handle.call(100.0))
        for _ in range(5):
            await handle.call(1.0)
        assert anyio.current_time() == pytest.approx(5)
        tasks.cancel_scope.cancel()


async def test_a_replica_takes_any_number_of_batches_where_none_is_said() -> None:
    config: Any = {"max_batch_size": 1, "max_concurrent_batches": None}
    async with serving(slowly, **config) as (_, handle, stage):
        await outcomes(*[handle.call(5.0) for _ in range(50)])
        assert (anyio.current_time(), stage.replicas[0].most_batches) == (5, 50)


async def test_code_knows_its_replica() -> None:
    async def tag(items: list[int]) -> list[str]:
        return [current_replica_tag()] * len(items)

    async with serving(tag, num_replicas=2) as (_, handle, _):
        assert [await handle.call(0) for _ in range(3)] == ["b#0", "b#1", "b#0"]


class ThreeMethods:
    async def __call__(self, items: list[int]) -> list[int]:
        await anyio.sleep(1)
        return items

    async def first(self, items: list[int]) -> list[int]:
        return await self(items)

    async def second(self, items: list[int]) -> list[int]:
        return await self(items)


async def test_methods_share_the_replicas_and_none_starves() -> None:
    done = {"__call__": 0, "first": 0, "second": 0}

    async def call_on(handle: EndpointHandle, method: str) -> None:
        while True:
            await handle.options(method_name=method).call(1)
            done[method] += 1

    async with serving_tasks(ThreeMethods, max_batch_size=1) as (_, handle, stage, tasks):
        for method in done:
            for _ in range(3):
                tasks.start_soon(call_on, handle, method)
        await anyio.sleep(300.5)
        assert stage.replicas[0].most_batches == 1
        assert sum(done.values()) == 300
        assert min(done.values()) > 30
        tasks.cancel_scope.cancel()


async def test_a_method_is_next_in_line_also_while_its_own_batch_has_the_replica() -> None:
    async with serving_tasks(ThreeMethods, max_batch_size=1) as (_, handle, stage, tasks):
        other = handle.options(method_name="first")
        await other.call(0)
        await under_way(tasks, handle.call(1), handle.call(2), other.call(3), handle.call(4))
        await anyio.sleep(10)
        assert [items for _, items in stage.calls] == [[0], [1], [2], [3], [4]]


async def test_a_method_of_lists_does_not_starve_beside_one_of_items() -> None:
    class Code:
        async def __call__(self, item: float) -> float:
            await anyio.sleep(item)
            return item

        async def many(self, items: list[float]) -> list[float]:
            await anyio.sleep(1)
            return items

    async def call_on(handle: EndpointHandle, item: float) -> None:
        while True:
            await handle.call(item)

    async with serving_tasks(Code, max_ongoing_requests=4) as (_, handle, _, tasks):
        for number in range(8):
            tasks.start_soon(call_on, handle, 1 + number / 10)
        await anyio.sleep(5)
        many = handle.options(method_name="many")
        with anyio.fail_after(100):
            assert await many.call(1.0) == 1.0
        tasks.cancel_scope.cancel()


async def test_a_replica_that_dies_fails_its_batch_and_no_other(held: Held) -> None:
    async with serving_tasks(held, num_replicas=2, **PAIRS) as (_, handle, stage, tasks):
        callers = await under_way(tasks, *[handle.call(item) for item in range(4)])
        stage.replicas[0].die("ran out of luck")
        await settle()
        await held.release()
        first, second, *others = [caller.outcome for caller in callers]
        assert isinstance(first, ReplicaDied)
        assert isinstance(second, ReplicaDied)
        assert first is not second
        assert "ran out of luck" in str(first)
        assert others == [2, 3]


async def test_a_batch_runs_again_where_retries_allow_it(held: Held) -> None:
    async with serving_tasks(held, num_replicas=2, retries=1, **PAIRS) as (_, handle, stage, tasks):
        callers = await under_way(tasks, handle.call(0), handle.call(1))
        await stage.lose()
        assert stage.calls == [(0, [0, 1]), (1, [0, 1])]
        await held.release()
        assert [caller.outcome for caller in callers] == [0, 1]


async def test_a_batch_runs_again_also_while_its_backend_drains(held: Held) -> None:
    async with serving_tasks(held, num_replicas=2, retries=1) as (controller, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(0))
        tasks.start_soon(controller.shutdown)
        await settle()
        await stage.lose()
        assert stage.calls == [(0, [0]), (1, [0])]
        await held.release()
        assert caller.outcome == 0


async def test_a_batch_runs_again_with_all_of_its_items() -> None:
    async def code(items: list[int]) -> list[int]:
        taken = [items.pop() for _ in range(len(items))][::-1]
        if len(stage.calls) == 1:
            stage.replicas[0].die()
            await anyio.sleep_forever()
        return taken

    async with serving(code, num_replicas=2, retries=1, **PAIRS) as (_, handle, stage):
        assert await outcomes(handle.call(1), handle.call(2)) == [1, 2]
    assert [sorted(items) for _, items in stage.calls] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_a_batch_that_kills_is_run_so_often_and_no_more(retries: int, stage: Stage) -> None:
    async with serving(Deadly(stage, 666), stage, retries=retries) as (controller, handle, _):
        assert isinstance(await outcome(handle.call(666)), ReplicaDied)
        assert len(stage.calls) == retries + 1
        assert await handle.call(1) == -1
        assert (await controller.status()).backends["b"].deaths == retries + 1


async def test_retries_are_those_of_the_config_when_the_replica_dies(held: Held) -> None:
    async with serving_tasks(held, num_replicas=2) as (controller, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(0))
        await controller.update_backend_config("b", {"retries": 1})
        stage.replicas[0].die()
        await held.release()
        assert caller.outcome == 0


async def test_one_item_that_kills_fails_alone_where_errors_are_isolated(stage: Stage) -> None:
    code = Deadly(stage, 666)
    async with serving(code, stage, isolate_errors=True, max_batch_size=8) as (_, handle, _):
        items = [1, 2, 666, 4, 5, 6, 7, 8]
        results = await outcomes(*[handle.call(item) for item in items])
        assert isinstance(results[2], ReplicaDied)
        assert [*results[:2], *results[3:]] == [-1, -2, -4, -5, -6, -7, -8]


async def test_the_death_of_another_backends_replica_is_no_reason_to_run_again(held: Held) -> None:
    async with serving(held) as (controller, inner, stage):

        async def code(items: list[int]) -> list[int]:
            return [await inner.call(item) for item in items]

        others = Stage()
        config = {"placement": others, "retries": 5}
        outer = await deployed(controller, "o", code, config=config)
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, outer.call(1))
            await stage.lose()
            assert isinstance(caller.outcome, ReplicaDied)
            assert caller.outcome.replica == "b#0"
        assert len(others.calls) == 1
        assert len(others.alive) == 1


async def test_an_error_of_the_code_is_no_reason_to_run_again() -> None:
    async def code(items: list[int]) -> list[int]:
        raise ZeroDivisionError(items)

    async with serving(code, retries=5) as (_, handle, stage):
        assert isinstance(await outcome(handle.call(1)), ZeroDivisionError)
        assert len(stage.calls) == 1


async def test_a_caller_that_leaves_while_its_batch_waits_for_a_replica_is_let_go(held, stage):
    async with serving_tasks(held, stage, retries=3) as (_, handle, _, tasks):
        first, second = await under_way(tasks, handle.call(1), handle.call(2))
        stage.start = gated = Gated()
        await stage.lose(wait_s=1)
        await first.gone()
        assert first.outcome is LEFT
        assert second.outcome is PENDING
        gated.let(1)
        await held.release()
        assert second.outcome == 2


async def test_a_batch_is_given_up_when_all_leave_while_it_waits_for_a_replica(held, stage):
    async with serving_tasks(held, stage, retries=3) as (controller, handle, _, tasks):
        callers = await under_way(tasks, handle.call(1), handle.call(2))
        stage.start = gated = Gated()
        await stage.lose(wait_s=1)
        for caller in callers:
            caller.leave()
        await settle()
        await gated.go(1)
        assert len(stage.calls) == 1
        assert (await controller.status()).backends["b"].ongoing == 0


async def test_a_batch_that_runs_again_is_not_stopped_by_a_bound_that_was_lowered(held):
    config: Any = {"max_batch_size": 4, "batch_wait_timeout_s": None, "retries": 1}
    async with serving_tasks(held, num_replicas=2, **config) as (controller, handle, stage, tasks):
        callers = await under_way(tasks, *[handle.call(item) for item in range(4)])
        await controller.update_backend_config("b", {"max_ongoing_requests": 2})
        held.gate.set()
        await stage.lose(wait_s=10)
        assert [caller.outcome for caller in callers] == [0, 1, 2, 3]


class Streams:
    """Code whose streams make one step a second, and whose replica dies when it is told to."""

    def __init__(self, steps: list[list[Any]]) -> None:
        self.steps = steps
        self.runs: list[list[int]] = []

    async def __call__(self, items: list[int]) -> AsyncGenerator[list[Any], None]:
        self.runs.append(list(items))
        if len(self.runs) > 1:  # again: answer them all
            yield [f"again {item}" for item in items]
            return
        for step in self.steps:
            yield step
            await anyio.sleep(1)
        await anyio.sleep_forever()


async def test_streams_that_got_nothing_run_again_and_the_others_fail() -> None:
    code = Streams([["zero", shoal.SKIP, shoal.SKIP, "three"], [shoal.END, *[shoal.SKIP] * 3]])
    results: dict[int, list[Any]] = {}
    config: Any = {"max_batch_size": 4, "batch_wait_timeout_s": None, "retries": 1}
    async with serving(code, num_replicas=2, **config) as (_, handle, stage):

        async def reader(item: int) -> None:
            results[item] = await read(handle.stream(item))

        async with anyio.create_task_group() as tasks:
            for item in range(4):
                tasks.start_soon(reader, item)
            await anyio.sleep(1.5)
            order = code.runs[0]
            stage.replicas[0].die()
        by_place = [results[item] for item in order]
    assert by_place[0] == ["zero"]  # it had ended before
    assert by_place[1] == [f"again {order[1]}"]
    assert by_place[2] == [f"again {order[2]}"]
    assert by_place[3][0] == "three"
    assert isinstance(by_place[3][1], ReplicaDied)
    assert code.runs == [order, [order[1], order[2]]]


async def test_streams_fail_after_what_they_have_where_nothing_may_run_again() -> None:
    code = Streams([["zero", shoal.SKIP]])
    async with serving(code, num_replicas=2, **PAIRS) as (_, handle, stage):
        results = await read_until_a_death(stage, handle)
    lengths = sorted(len(result) for result in results)
    assert lengths == [1, 2]
    assert all(isinstance(result[-1], ReplicaDied) for result in results)
    assert len(code.runs) == 1


async def test_streams_that_all_have_ended_do_not_run_again() -> None:
    code = Streams([["zero"], [shoal.END]])
    async with serving(code, retries=1) as (_, handle, stage):
        assert await read(handle.stream(0)) == ["zero"]
        await stage.lose(wait_s=5)
        assert len(code.runs) == 1


@pytest.mark.parametrize("second", [shoal.SKIP, "one"])
async def test_the_log_says_that_streams_run_again_if_some_do(second, caplog):
    code = Streams([["zero", second]])
    async with serving(code, num_replicas=2, retries=1, **PAIRS) as (_, handle, stage):
        await read_until_a_death(stage, handle)
    assert len(code.runs) == 1 + caplog.text.count("calls run again")
    assert len(code.runs) == (2 if second is shoal.SKIP else 1)


async def test_a_stream_that_failed_alone_does_not_run_again() -> None:
    code = Streams([[ValueError("bad"), shoal.SKIP]])
    async with serving(code, num_replicas=2, retries=1, **PAIRS) as (_, handle, stage):
        results = await read_until_a_death(stage, handle)
    bad, again = sorted(results, key=lambda result: isinstance(result[0], str))
    assert isinstance(bad[0], ValueError)
    assert again[0].startswith("again")
    assert len(code.runs[1]) == 1


async def test_a_batch_that_runs_again_fails_when_no_replica_can_be_started(held, stage):
    async with serving_tasks(held, stage, retries=3) as (_, handle, _, tasks):
        [caller] = await under_way(tasks, handle.call(1))
        stage.start = failing()
        await stage.lose(wait_s=100)
        assert isinstance(caller.outcome, BackendUnavailable)


class Two:
    def __init__(self, held: Held) -> None:
        self._held = held

    async def __call__(self, items: list[int]) -> list[int]:
        return await self._held(items)

    async def other(self, items: list[int]) -> list[int]:
        return items


async def test_a_method_whose_callers_have_left_keeps_no_place(held: Held) -> None:
    async with serving_tasks(Two(held), max_batch_size=1) as (_, handle, _, tasks):
        other = handle.options(method_name="other")
        assert await other.call(0) == 0
        first, second = await under_way(tasks, handle.call(1), handle.call(2))
        [leaving] = await under_way(tasks, other.call(3))
        leaving.leave()
        await held.release()
        assert (first.outcome, second.outcome, leaving.outcome) == (1, 2, LEFT)


async def test_a_method_whose_batcher_broke_keeps_no_place(held: Held) -> None:
    class Breaking(SizeOrWait):
        is_broken = False

        def decide(self, now: float, pressure: Any) -> Any:
            if self.is_broken:
                raise ZeroDivisionError
            decision = super().decide(now, pressure)
            if isinstance(decision, Dispatch):
                cutters.append(self)
            return decision

    cutters: list[Breaking] = []
    config: Any = {"max_batch_size": 1, "policy": lambda options: Breaking(options)}
    async with serving_tasks(Two(held), **config) as (controller, handle, _, tasks):
        other = handle.options(method_name="other")
        assert await other.call(0) == 0
        policy_of_other = cutters[-1]
        await under_way(tasks, handle.call(1))
        [waiting] = await under_way(tasks, other.call(2))
        policy_of_other.is_broken = True
        controller.backends["b"].method_batchers["other"].batcher.flush()
        await settle()
        assert isinstance(waiting.outcome, BatcherClosed)
        held.gate.set()
        with anyio.fail_after(5):
            assert await handle.call(3) == 3


@pytest.mark.parametrize("passes", range(6))
async def test_a_batch_that_is_given_up_as_it_gets_a_replica_holds_up_nobody(passes, held, stage):
    async with serving_tasks(held, stage, retries=3, max_batch_size=1) as (_, handle, _, tasks):
        leaving, staying = await under_way(tasks, handle.call(1), handle.call(2))
        stage.start = gated = Gated()
        await stage.lose(wait_s=1)
        held.gate.set()
        gated.let(1)
        for _ in range(passes):
            await anyio.lowlevel.checkpoint()
        leaving.leave()
        await anyio.sleep(5)
        assert staying.outcome == 2
