#!/usr/bin/env python3
"""Items a second of `map` over a data set, beside other ways, and the memory of a long run.

    python benchmarks/data_sets.py [--items 100000] [--rounds 5] [--long 10000000]

The handler takes 4 ms for a batch of up to 256 items: a plain function that blocks, as models do,
which the plain loop calls in a worker thread; and an async one that sleeps. An event loop rounds
the rest of a sleep up to a whole millisecond, so what `map` does meanwhile makes it sleep longer.
The rounds of all ways alternate. Shown is the median, and its ratio to the plain loop, which takes
256 items at a time and calls the handler itself. The long run has a handler that takes no time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

import shoal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

SIZE = 256


async def handle(items: list[int]) -> list[int]:
    await anyio.sleep(0.004)
    return [item + 1 for item in items]


def handle_blocking(items: list[int]) -> list[int]:
    time.sleep(0.004)
    return [item + 1 for item in items]


async def handle_at_once(items: list[int]) -> list[int]:
    return items


def in_chunks(items: Iterator[int], size: int) -> Iterator[list[int]]:
    while chunk := list(islice(items, size)):
        yield chunk


async def plain_loop(_: Any, items: Iterator[int]) -> int:
    return sum([len(await handle(chunk)) for chunk in in_chunks(items, SIZE)])


async def plain_loop_in_threads(_: Any, items: Iterator[int]) -> int:
    run = anyio.to_thread.run_sync
    return sum([len(await run(handle_blocking, chunk)) for chunk in in_chunks(items, SIZE)])


async def map_of_chunks(call: Any, items: Iterator[int]) -> int:
    return sum([len(await call.map(chunk)) for chunk in in_chunks(items, SIZE)])


async def iterated(call: Any, items: Iterator[int]) -> int:
    count = 0
    async for _ in call.map(items):
        count += 1
    return count


async def as_completed(call: Any, items: Iterator[int]) -> int:
    count = 0
    async for _ in call.map(items, as_completed=True):
        count += 1
    return count


async def async_iterable(call: Any, items: Iterator[int]) -> int:
    async def source() -> AsyncIterator[int]:
        for item in items:
            yield item

    return await iterated(call, source())  # type: ignore[arg-type]


async def task_for_each_item(call: Any, items: Iterator[int]) -> int:
    count = 0
    for chunk in in_chunks(items, 4 * SIZE):
        async with anyio.create_task_group() as tasks:
            for item in chunk:
                tasks.start_soon(call, item)
        count += len(chunk)
    return count


WAYS: dict[str, Callable[[Any, Iterator[int]], Awaitable[int]]] = {
    "async for ... in f.map(items)": iterated,
    "  as completed": as_completed,
    "  of an async iterable": async_iterable,
    "await f.map(256 items), in a loop": map_of_chunks,
    "a task for each item": task_for_each_item,
}


async def compare(handler: Any, plain: Any, items: int, rounds: int) -> dict[str, float]:
    ways = {"plain loop": plain, **WAYS}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    async with shoal.Batcher(handler, max_batch_size=SIZE) as call:
        for _ in range(rounds):
            for name, way in ways.items():
                began_at = time.perf_counter()
                done = await way(call, iter(range(items)))
                rates[name].append(done / (time.perf_counter() - began_at))
    return {name: statistics.median(of_way) for name, of_way in rates.items()}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def run_long(items: int) -> None:
    async with shoal.Batcher(handle_at_once, max_batch_size=SIZE) as call:
        done, began_at = 0, time.perf_counter()
        async for _ in call.map(range(items)):
            done += 1
            if done in (items // 100, items):
                rate = done / (time.perf_counter() - began_at)
                print(f"{done:>12,} items: {resident_mib():.1f} MiB, {rate:,.0f} a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=10_000_000)
    given = parser.parse_args()
    for backend in ("trio", "asyncio"):
        for kind, handler, plain in (
            ("a plain function", handle_blocking, plain_loop_in_threads),
            ("an async function", handle, plain_loop),
        ):
            run = partial(compare, handler, plain, given.items, given.rounds)
            rates = anyio.run(run, backend=backend)
            print(f"\n{kind}, {backend}: items a second")
            for name, rate in rates.items():
                print(f"{name:36}{rate:>10,.0f}{rate / rates['plain loop']:>8.2f}")
    if given.long:
        print("\nmemory, trio:")
        anyio.run(run_long, given.long, backend="trio")


if __name__ == "__main__":
    main()
