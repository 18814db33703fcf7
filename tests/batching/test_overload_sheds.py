"""A full queue that fails somebody else to admit a newcomer."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import LEFT, PENDING, Held, launch, line_up, outcome, settle

LEVELS: dict[str, Any] = {
    "max_batch_size": 1,
    "max_queued_requests": 3,
    "priority_levels": 3,
    "priority_aging_s": None,
}


async def fill(tasks: Any, call: Any, *levels: int) -> list[Any]:
    """Occupies the slot, and queues a request of each level; its item is its name."""
    await launch(tasks, call("plug"))
    return [
        (await line_up(tasks, call.options(priority=level)(f"{level}:{place}")))[0]
        for place, level in enumerate(levels)
    ]


def ends(callers: list[Any]) -> list[Any]:
    """What became of callers: the item for an answer, the type of an error."""
    return [
        type(caller.outcome) if isinstance(caller.outcome, Exception) else caller.outcome
        for caller in callers
    ]


async def test_shed_oldest_fails_the_oldest_of_the_lowest_level() -> None:
    held = Held()
    batcher = shoal.Batcher(held, **LEVELS, overload="shed_oldest")
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await fill(tasks, call, 3, 2, 3)
        callers += await launch(tasks, call.options(priority=1)("1:3"))
        assert ends(callers) == [shoal.errors.Overloaded, PENDING, PENDING, PENDING]
        callers += await line_up(tasks, call.options(priority=2)("2:4"))
        callers += await launch(tasks, call.options(priority=2)("2:5"))
        assert batcher.statistics().queued == 3
        held.gate.set()
    shed = shoal.errors.Overloaded
    assert ends(callers) == [shed, shed, shed, "1:3", "2:4", "2:5"]
    assert held.batches[1:] == [["1:3"], ["2:4"], ["2:5"]]
    statistics = batcher.statistics()
    assert (statistics.shed, statistics.rejected, statistics.finished) == (3, 0, 4)


async def test_shed_oldest_never_sheds_a_level_above_the_newcomers() -> None:
    held = Held()
    batcher = shoal.Batcher(held, **LEVELS, overload="shed_oldest")
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await fill(tasks, call, 1, 1, 2)
        refusal = await outcome(call.options(priority=3)("3:3"))
        assert isinstance(refusal, shoal.errors.Overloaded)
        held.gate.set()
    assert ends(callers) == ["1:0", "1:1", "2:2"]
    statistics = batcher.statistics()
    assert (statistics.shed, statistics.rejected) == (0, 1)


async def test_shed_lowest_fails_the_newest_of_the_lowest_level_for_a_higher_one() -> None:
    held = Held()
    batcher = shoal.Batcher(held, **LEVELS, overload="shed_lowest")
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await fill(tasks, call, 3, 2, 3)
        callers += await launch(tasks, call.options(priority=2)("2:3"))
        assert ends(callers) == [PENDING, PENDING, shoal.errors.Overloaded, PENDING]
        refusal = await outcome(call.options(priority=3)("3:4"))  # an equal is no reason to shed
        assert isinstance(refusal, shoal.errors.Overloaded)
        callers += await line_up(tasks, call.options(priority=1)("1:5"))
        assert isinstance(await outcome(call.options(priority=2)("2:6")), shoal.errors.Overloaded)
        held.gate.set()
    assert ends(callers) == [shoal.errors.Overloaded, "2:1", shoal.errors.Overloaded, "2:3", "1:5"]
    statistics = batcher.statistics()
    assert (statistics.shed, statistics.rejected) == (2, 2)


@pytest.mark.parametrize("overload", ["shed_oldest", "shed_lowest"])
async def test_who_has_left_is_not_shed_and_makes_room(overload: Any) -> None:
    held = Held()
    batcher = shoal.Batcher(held, **LEVELS, overload=overload)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await fill(tasks, call, 3, 3, 3)
        callers[0].leave()
        callers[2].leave()
        await settle()
        callers += await line_up(tasks, call.options(priority=1)("1:3"))
        callers += await line_up(tasks, call.options(priority=1)("1:4"))
        assert batcher.statistics().shed == 0
        callers += await line_up(tasks, call.options(priority=1)("1:5"))
        held.gate.set()
    assert ends(callers) == [LEFT, shoal.errors.Overloaded, LEFT, "1:3", "1:4", "1:5"]
    assert batcher.statistics().shed == 1
