"""The pool by itself: who gets the next batch, and who is told when there is room."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from shoal.serving.backends.pool import Pool, PoolCapacity, PoolMember


class Named:
    """Stands in for a replica, which the pool gives no work by itself."""

    takes_work = True

    def __init__(self, tag: str) -> None:
        self.tag = tag


def filled(*tags: str, slots: int = 1, most: int | None = None) -> tuple[Pool, list[PoolMember]]:
    pool = Pool("b")
    named: list[Any] = [Named(tag) for tag in tags]
    return pool, [pool.add(one, slots, most) for one in named]


def room_in(pool: Pool, size: int) -> PoolCapacity:
    room = PoolCapacity(pool, size)
    room.subscribe(lambda: None)
    return room


@contextmanager
def at_work(pool: Pool, member: PoolMember, size: int) -> Generator[None]:
    pool.begin(member, size)
    try:
        yield
    finally:
        pool.end(member, size)


def taken(pool: Pool, size: int = 1) -> str | None:
    member = pool.choose(size)
    return None if member is None else member.replica.tag


async def test_the_least_busy_replica_is_taken() -> None:
    pool, (first, second) = filled("a", "b", slots=3)
    with at_work(pool, first, 1), at_work(pool, first, 1), at_work(pool, second, 1):
        assert taken(pool) == "b"


async def test_a_batch_does_not_bring_back_a_replica_that_was_withdrawn() -> None:
    pool, (first, second) = filled("a", "b")
    pool.withdraw(first)
    with at_work(pool, first, 1), at_work(pool, second, 1):
        pass
    assert [taken(pool) for _ in range(2)] == ["b", "b"]


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
