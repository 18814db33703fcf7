"""The pool by itself: who gets the next batch, and who is told when there is room."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from batching.scenes import PENDING, Caller, settle
from shoal.errors import BackendUnavailable
from shoal.serving.backends.pool import Member, Pool, PoolCapacity

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.anyio


class Named:
    """Stands in for a replica, which the pool gives no work by itself.

    Attributes:
        takes_work: As of `Replica`.
    """

    takes_work = True

    def __init__(self, tag: str) -> None:
        self.tag = tag


def filled(*tags: str, slots: int = 1, most: int | None = None) -> tuple[Pool, list[Member]]:
    pool = Pool("b")
    named: list[Any] = [Named(tag) for tag in tags]
    return pool, [pool.add(one, slots, most) for one in named]


def room_in(pool: Pool, size: int) -> PoolCapacity:
    room = PoolCapacity(pool, size)
    room.subscribe(lambda: None)
    return room


def free(pool: Pool, size: int) -> float:
    room = PoolCapacity(pool, size)
    room.subscribe(lambda: None)()
    return room.free


@contextmanager
def at_work(pool: Pool, member: Member, size: int) -> Generator[None]:
    pool.begin(member, size)
    try:
        yield
    finally:
        pool.end(member, size)


def taken(pool: Pool, size: int = 1) -> str | None:
    member = pool.choose(size)
    return None if member is None else member.replica.tag


async def test_an_idle_replica_is_taken_before_a_busy_one() -> None:
    pool, (first, _, third) = filled("a", "b", "c", slots=2)
    with at_work(pool, first, 1), at_work(pool, third, 1):
        assert taken(pool) == "b"


async def test_the_least_busy_replica_is_taken() -> None:
    pool, (first, second) = filled("a", "b", slots=3)
    with at_work(pool, first, 1), at_work(pool, first, 1), at_work(pool, second, 1):
        assert taken(pool) == "b"


async def test_equals_take_turns() -> None:
    pool, _ = filled("a", "b", "c")
    order: list[Any] = []
    for _ in range(7):
        order.append(taken(pool))
        member = pool.choose(1)
        assert member is not None
        with at_work(pool, member, 1):
            pass
    assert order == ["a", "b", "c", "a", "b", "c", "a"]


async def test_none_is_taken_when_all_have_what_they_can_take() -> None:
    pool, (first, second) = filled("a", "b")
    with at_work(pool, first, 1), at_work(pool, second, 1):
        assert taken(pool) is None
        assert free(pool, 1) == 0
    assert free(pool, 1) == 2


async def test_a_replica_takes_no_more_requests_than_it_may_have() -> None:
    pool, (only,) = filled("a", slots=4, most=4)
    assert free(pool, 1) == 4
    assert free(pool, 4) == 1
    with at_work(pool, only, 3):
        assert free(pool, 1) == 1
        assert taken(pool, 1) == "a"
        assert taken(pool, 2) is None


async def test_work_that_fails_gives_its_place_back() -> None:
    pool, (only,) = filled("a")
    with suppress(ZeroDivisionError), at_work(pool, only, 5):
        assert only.ongoing == 5
        raise ZeroDivisionError
    assert (free(pool, 1), only.batches, only.ongoing, only.total) == (1, 0, 0, 1)


async def test_it_says_which_replica_has_ended_a_batch() -> None:
    ended: list[Member] = []
    pool = Pool("b")
    pool.on_batch = ended.append
    named: Any = Named("a")
    member = pool.add(named, 1)
    with at_work(pool, member, 1):
        assert ended == []
    assert ended == [member]


async def is_idle(member: Any) -> bool:
    with anyio.move_on_after(1):
        await member.wait_idle()
        return True
    return False


async def test_a_replica_that_is_withdrawn_finishes_what_it_has() -> None:
    pool, (only,) = filled("a", slots=2)
    with at_work(pool, only, 1):
        pool.withdraw(only)
        pool.withdraw(only)
        assert taken(pool) is None
        assert not await is_idle(only)
    assert await is_idle(only)
    assert free(pool, 1) == 0


async def test_a_batch_does_not_bring_back_a_replica_that_was_withdrawn() -> None:
    pool, (first, second) = filled("a", "b")
    pool.withdraw(first)
    with at_work(pool, first, 1), at_work(pool, second, 1):
        pass
    assert [taken(pool) for _ in range(2)] == ["b", "b"]


async def test_a_replica_is_idle_only_while_it_has_no_batch_at_all() -> None:
    pool, (only,) = filled("a", slots=2)
    assert await is_idle(only)
    with at_work(pool, only, 1):
        with at_work(pool, only, 1):
            pass
        assert not await is_idle(only)
    assert await is_idle(only)


async def test_who_waits_for_a_replica_to_be_idle_hears_of_it() -> None:
    pool, (only,) = filled("a", slots=2)
    async with anyio.create_task_group() as tasks:
        with at_work(pool, only, 1):
            tasks.start_soon(only.wait_idle)
            tasks.start_soon(only.wait_idle)
            await settle()


async def test_who_waits_gets_the_replica_that_is_free_first() -> None:
    pool, (first, second) = filled("a", "b")
    async with anyio.create_task_group() as tasks:
        with at_work(pool, first, 1):
            with at_work(pool, second, 1):
                caller = await tasks.start(Caller(pool.wait(1)).run)
                await settle()
                assert caller.outcome is PENDING
            await settle()
            assert caller.outcome is second


async def test_who_waits_gets_a_replica_that_is_added() -> None:
    pool, _ = filled()
    async with anyio.create_task_group() as tasks:
        caller = await tasks.start(Caller(pool.wait(1)).run)
        await settle()
        named: Any = Named("a")
        member = pool.add(named, 1)
        await settle()
        assert caller.outcome is member


async def test_who_waits_is_told_that_there_will_be_none() -> None:
    pool, _ = filled()
    cause = ValueError("no code")
    async with anyio.create_task_group() as tasks:
        caller = await tasks.start(Caller(pool.wait(1)).run)
        await settle()
        pool.fail(cause)
        await settle()
    assert isinstance(caller.outcome, BackendUnavailable)
    assert caller.outcome.__cause__ is cause
    assert "no code" in str(caller.outcome)


async def test_a_pool_that_has_failed_lets_batches_in_to_fail() -> None:
    pool, _ = filled()
    assert free(pool, 1) == 0
    pool.fail(ValueError())
    assert free(pool, 1) == 1
    with pytest.raises(BackendUnavailable):
        pool.check_available()
    with pytest.raises(BackendUnavailable):
        await pool.wait(1)


async def test_a_replica_mends_a_pool_that_had_failed() -> None:
    pool, _ = filled()
    pool.fail(ValueError())
    named: Any = Named("a")
    pool.add(named, 1)
    pool.check_available()
    assert (await pool.wait(1)).replica is named


async def test_replicas_take_more_and_less_at_once() -> None:
    pool, (first, second) = filled("a", "b")
    pool.resize(3, None)
    assert free(pool, 1) == 6
    with at_work(pool, first, 1), at_work(pool, first, 1):
        pool.resize(1, None)
        assert free(pool, 1) == 1
        assert pool.choose(1) is second
    assert free(pool, 1) == 2


async def test_each_change_of_room_is_told() -> None:
    pool, (first,) = filled("a", slots=2)
    seen: list[float] = []
    room = PoolCapacity(pool, 1)
    unsubscribe = room.subscribe(lambda: seen.append(room.free))
    with at_work(pool, first, 1):
        assert seen[-1:] == [1]
    assert seen[-1] == 2
    named: Any = Named("b")
    second = pool.add(named, 2)
    assert seen[-1] == 4
    pool.resize(1, None)
    assert seen[-1] == 2
    pool.withdraw(second)
    assert seen[-1] == 1
    pool.withdraw(first)
    pool.fail(ValueError())
    assert seen[-1] == 1
    count = len(seen)
    unsubscribe()
    pool.fail(None)
    assert len(seen) == count


async def test_a_batcher_that_had_to_wait_goes_before_others() -> None:
    pool, (first, second) = filled("a", "b")
    large, small = room_in(pool, 4), room_in(pool, 1)
    with at_work(pool, first, 1):
        with at_work(pool, second, 1):
            assert large.is_full()
            assert small.is_full()
        assert not large.is_full()
        assert not small.is_full()
        assert large.free == small.free == 1


async def test_a_small_batch_does_not_take_the_place_that_a_large_one_waits_for() -> None:
    pool, (only,) = filled("a", slots=4, most=4)
    large, small = room_in(pool, 4), room_in(pool, 1)
    with at_work(pool, only, 1):
        assert small.free == 3
        assert large.is_full()
        assert small.free == 0
        assert small.is_full()
    assert not large.is_full()
    assert small.free == 4


async def test_a_batcher_that_rests_gives_its_place_up() -> None:
    pool, (only,) = filled("a", slots=4, most=4)
    large, small = room_in(pool, 4), room_in(pool, 1)
    told: list[float] = []
    with at_work(pool, only, 1):
        assert large.is_full()
        small.on_change = lambda: told.append(small.free)
        large.rest()
        assert told == [3]
        large.rest()
        assert told == [3]


async def test_an_idle_replica_takes_a_batch_of_any_size() -> None:
    pool, (only,) = filled("a", slots=2, most=2)
    assert free(pool, 8) == 1
    assert pool.choose(8) is only
    with at_work(pool, only, 1):
        assert pool.choose(8) is None


async def test_a_batch_that_runs_again_goes_before_any_batcher() -> None:
    pool, (only,) = filled("a")
    room = room_in(pool, 1)
    async with anyio.create_task_group() as tasks:
        with at_work(pool, only, 1):
            waiting = await tasks.start(Caller(pool.wait(1)).run)
            await settle()
            assert room.is_full()
        assert room.is_full()
        await settle()
        assert waiting.outcome is only
        assert not room.is_full()


async def test_batchers_are_told_when_a_batch_that_was_to_run_again_is_given_up() -> None:
    pool, (only,) = filled("a")
    room = room_in(pool, 1)
    told: list[float] = []
    async with anyio.create_task_group() as tasks:
        with at_work(pool, only, 1):
            waiting = await tasks.start(Caller(pool.wait(1)).run)
            await settle()
            room.on_change = lambda: told.append(room.free)
        waiting.leave()
        await settle()
        assert told[-1] == 1


async def test_one_that_is_known_to_be_dead_gets_no_work() -> None:
    pool, (first, _) = filled("a", "b", slots=4)
    room = room_in(pool, 1)
    first.replica.takes_work = False  # type: ignore[misc]
    assert [taken(pool) for _ in range(3)] == ["b"] * 3
    assert room.free == 4


async def test_no_batch_is_formed_for_one_that_is_known_to_be_dead() -> None:
    pool, (only,) = filled("a", slots=4)
    room = room_in(pool, 1)
    only.replica.takes_work = False  # type: ignore[misc]
    assert room.is_full()
    assert room.free == 0
