"""What a call leaves behind is freed at once: a garbage collector finds nothing to do after it."""

import gc
from contextlib import suppress
from typing import Any

import anyio
import pytest

import shoal
from shoal.testing import settle


async def found_after(use: Any, handler: Any, **options: Any) -> list[str]:
    """Uses a batcher and returns the types of what only a garbage collector can free."""
    try:
        async with shoal.Batcher(handler, **options) as call:
            await use(call)  # what is made once is made now
            await settle()
            gc.collect()
            gc.disable()
            await use(call)
            await settle()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return [type(found).__name__ for found in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def results(items: list[int]) -> list[int]:
    return items


async def fails(items: list[int]) -> list[int]:
    raise ValueError(items)


async def fails_in_slots(items: list[int]) -> list[Any]:
    return [ValueError(item) for item in items]


async def is_short(items: list[int]) -> list[int]:
    return items[1:]


async def never_ends(items: list[int]) -> list[int]:
    await anyio.sleep_forever()
    return items


async def steps(items: list[int]) -> Any:
    for _ in range(3):
        yield items


async def steps_then_fails(items: list[int]) -> Any:
    yield items
    raise ValueError(items)


async def steps_then_fails_in_slots(items: list[int]) -> Any:
    yield items
    yield [ValueError(item) for item in items]


async def fails_in_first_parts(items: list[tuple[int, ...]]) -> list[Any]:
    return [ValueError(item) if 0 in item else item for item in items]


def parts(item: tuple[int, ...], _: float) -> list[tuple[int, ...]]:
    return [(number,) for number in item]


SPLIT: Any = {"max_batch_size": 1, "batch_size_fn": len, "split": parts, "join": tuple}


async def large_items(call: Any) -> None:
    for item in ((0, 1, 2), (1, 2, 3)):
        with suppress(ValueError), anyio.move_on_after(1):
            await call(item)


async def calls(call: Any) -> None:
    async def one(item: int) -> None:
        with suppress(ValueError, TimeoutError):
            await call(item)

    async with anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(one, item)


async def maps(call: Any) -> None:
    with suppress(ValueError):
        await call.map(range(3))


async def maps_with_errors_in_place(call: Any) -> None:
    await call.map(range(3), return_exceptions=True)


def refuses(item: int) -> int:
    if item == 1:
        raise ValueError(item)
    return 99 if item == 2 else 1


async def leaves(call: Any) -> None:
    with anyio.move_on_after(1):
        await call(1)


async def misses_a_deadline(call: Any) -> None:
    with suppress(TimeoutError):
        await call.options(timeout_s=1)(1)


async def misses_the_deadline_of_a_map(call: Any) -> None:
    with suppress(TimeoutError):
        await call.options(timeout_s=1).map(range(3))


async def reads(call: Any) -> None:
    async def one(item: int) -> None:
        with suppress(ValueError):
            async with call(item) as stream:
                async for _ in stream:
                    pass

    async with anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(one, item)


async def leaves_the_stream(call: Any) -> None:
    async with call(1) as stream:
        await anext(stream)


@pytest.mark.parametrize(
    ("use", "handler", "options"),
    [
        (calls, results, {}),
        (calls, results, {"max_batch_size": 1}),
        (calls, fails, {}),
        (calls, fails, {"isolate_errors": True}),
        (calls, fails, {"handler_timeout_s": 5}),
        (calls, fails_in_slots, {}),
        (calls, is_short, {}),
        (calls, never_ends, {"handler_timeout_s": 5}),
        (maps, results, {}),
        (maps, fails, {}),
        (maps, fails_in_slots, {}),
        (maps_with_errors_in_place, fails, {}),
        (maps_with_errors_in_place, fails_in_slots, {}),
        (maps, results, {"batch_size_fn": refuses}),
        (maps_with_errors_in_place, results, {"batch_size_fn": refuses}),
        (maps_with_errors_in_place, results, {"batch_size_fn": refuses, "dedupe": True}),
        (maps_with_errors_in_place, fails_in_slots, {"request_timeout_s": 9}),
        (maps_with_errors_in_place, results, {"max_queued_requests": 0}),
        (leaves, never_ends, {}),
        (leaves, results, {"batch_wait_timeout_s": None}),
        (misses_a_deadline, never_ends, {}),
        (misses_a_deadline, results, {"batch_wait_timeout_s": None}),
        (misses_the_deadline_of_a_map, never_ends, {}),
        (reads, steps, {}),
        (reads, steps, {"stream_buffer": 1}),
        (reads, steps_then_fails, {}),
        (reads, steps_then_fails_in_slots, {}),
        (leaves_the_stream, steps, {}),
        (large_items, fails_in_first_parts, SPLIT),
        (large_items, never_ends, SPLIT),
    ],
)
async def test_nothing_is_left_for_the_collector(use, handler, options):
    assert await found_after(use, handler, **options) == []


async def test_the_collector_would_find_a_cycle() -> None:
    async def makes_a_cycle(_call: Any) -> None:
        cycle: list[Any] = []
        cycle.append(cycle)

    assert await found_after(makes_a_cycle, results) == ["list"]
