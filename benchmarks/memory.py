"""The cost of waiting: bytes per queued request, time to cancel many, and wake-ups while idle.

Memory is what `tracemalloc` finds allocated for N callers in the queue of a busy handler, minus
that for N tasks that are only parked, divided by N. So a caller's own task, which a program needs
anyway, is not counted, but the coroutine of its call is.

Wake-ups are counted: passes of the event loop and steps of tasks within a second, with open
batchers that have served a request and are now idle, compared with the same without batchers.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import asyncio
import gc
import selectors
import time
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import trio

import shoal
from benchmarks.report import Panel, Report, parser, print_table, verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

BACKENDS: Final = ("trio", "asyncio")
FEW: Final = 10_000
MANY: Final = 100_000
IDLE_BATCHERS: Final = 10
IDLE_S: Final = 1.0

BYTES_TARGET: Final = 600
# Quadratic cancellation would cost ten times as much per request. Linear cancellation costs a
# little more, because a larger heap fits less well into the caches.
GROWTH_TARGET: Final = 3.0


def _aborted(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


async def park_on_trio() -> None:
    """Waits until it is cancelled, by the simplest means of the loop."""
    await trio.lowlevel.wait_task_rescheduled(_aborted)


async def park_on_asyncio() -> None:
    """Waits until it is cancelled, by the simplest means of the loop."""
    await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def behind_a_busy_handler() -> AsyncIterator[Callable[[int], Coroutine[Any, Any, Any]]]:
    """Opens a batcher whose only worker slot is busy until the end of the block."""
    busy, release = anyio.Event(), anyio.Event()

    async def held(items: list[int]) -> list[int]:
        busy.set()
        await release.wait()
        return items

    batcher = shoal.Batcher(held, max_batch_size=64, max_queued_requests=2 * MANY)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 0)
        await busy.wait()
        yield call
        assert batcher.statistics().queued == 0, "cancelled requests gave their places back"
        release.set()


async def caller(call: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
    """Makes one call, as a user's task."""
    await call(1)


async def let_all_park() -> None:
    """Runs the event loop until every started task waits."""
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


async def bytes_waiting(task: Callable[[], Coroutine[Any, Any, None]], count: int) -> float:
    """Returns the bytes allocated for each of many waiting tasks."""
    async with anyio.create_task_group() as tasks:
        gc.collect()
        tracemalloc.start()
        for _ in range(count):
            tasks.start_soon(task)
        await let_all_park()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        tasks.cancel_scope.cancel()
    return used / count


async def times_waiting(
    call: Callable[[int], Coroutine[Any, Any, Any]], callers: int
) -> tuple[float, float]:
    """Returns the microseconds per caller to start waiting, and to be cancelled."""
    gc.collect()
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller, call)
        await let_all_park()
        queued = time.perf_counter()
        tasks.cancel_scope.cancel()
    ended = time.perf_counter()
    return (queued - began) / callers * 1e6, (ended - queued) / callers * 1e6


def measure_bytes(backend: str) -> dict[str, Any]:
    """Measures the memory of a queued request."""
    park = park_on_trio if backend == "trio" else park_on_asyncio

    async def measure() -> tuple[float, float]:
        await bytes_waiting(park, 100)
        parked = await bytes_waiting(park, FEW)
        async with behind_a_busy_handler() as call:
            await bytes_waiting(partial(caller, call), 100)
            return parked, await bytes_waiting(partial(caller, call), FEW)

    parked, queued = anyio.run(measure, backend=backend)
    return {
        "what": "bytes a queued request",
        "backend": backend,
        "parked_task": parked,
        "queued_request": queued,
        "value": queued - parked,
        "verdict": verdict(queued - parked, at_most=BYTES_TARGET),
    }


def measure_cancelling(backend: str, many: int) -> dict[str, Any]:
    """Measures the cost to queue and to cancel few and many requests."""

    async def measure() -> dict[int, tuple[float, float]]:
        async with behind_a_busy_handler() as call:
            await times_waiting(call, 1000)
            return {callers: await times_waiting(call, callers) for callers in (many // 10, many)}

    found = anyio.run(measure, backend=backend)
    growth = found[many][1] / found[many // 10][1]
    return {
        "what": f"us to cancel one of {many // 10:,} / {many:,}",
        "backend": backend,
        "queue_us": {str(callers): times[0] for callers, times in found.items()},
        "cancel_us": {str(callers): times[1] for callers, times in found.items()},
        "value": growth,
        "verdict": verdict(growth, at_most=GROWTH_TARGET),
    }


class CountingInstrument(trio.abc.Instrument):
    """Counts the passes and task steps of a trio run."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, _timeout: float) -> None:
        """Counts a pass of the event loop."""
        self.count += 1

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Counts a step of a task."""
        self.count += 1


class CountingSelector(selectors.DefaultSelector):
    """Counts the passes of an asyncio event loop by calls of its selector."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Counts a pass of the event loop."""
        self.count += 1
        return super().select(timeout)


async def wake_ups(counter: CountingInstrument | CountingSelector, batchers: int) -> int:
    """Counts wake-ups during a time without work."""

    async def echo(items: list[int]) -> list[int]:
        return items

    async with AsyncExitStack() as stack:
        for _ in range(batchers):
            call = await stack.enter_async_context(shoal.Batcher(echo, batch_wait_timeout_s=0.01))
            assert await call(1) == 1
        await anyio.sleep(0.05)
        before = counter.count
        await anyio.sleep(IDLE_S)
        return counter.count - before


def measure_idling(backend: str) -> dict[str, Any]:
    """Measures how often idle batchers wake up."""
    counts = {}
    for batchers in (0, IDLE_BATCHERS):
        options: Mapping[str, Any]
        counter: CountingInstrument | CountingSelector
        if backend == "trio":
            counter = CountingInstrument()
            options = {"instruments": [counter]}
        else:
            counter = selector = CountingSelector()
            options = {"loop_factory": lambda found=selector: asyncio.SelectorEventLoop(found)}
        counts[batchers] = anyio.run(
            wake_ups, counter, batchers, backend=backend, backend_options=dict(options)
        )
    extra = counts[IDLE_BATCHERS] - counts[0]
    return {
        "what": f"wake-ups of {IDLE_BATCHERS} idle batchers in {IDLE_S:g} s",
        "backend": backend,
        "without_batchers": counts[0],
        "with_batchers": counts[IDLE_BATCHERS],
        "value": extra,
        "verdict": verdict(extra, at_most=0),
    }


def _as_texts(row: dict[str, Any]) -> list[str]:
    if "cancel_us" in row:
        beside, figure = (f"{us:.1f}" for us in row["cancel_us"].values())
        return [
            row["what"],
            row["backend"],
            beside,
            figure,
            f"x {row['value']:.2f}",
            row["verdict"],
        ]
    keys = (
        ("parked_task", "queued_request")
        if "parked_task" in row
        else ("without_batchers", "with_batchers")
    )
    beside, figure = (f"{row[key]:,.0f}" for key in keys)
    return [row["what"], row["backend"], beside, figure, f"+ {row['value']:.0f}", row["verdict"]]


def main() -> None:
    """Runs the benchmark."""
    made = parser("The cost of waiting: bytes, cancellation, and idle wake-ups.", "memory")
    arguments = made.parse_args()
    report = Report("memory", arguments.json, ("shoal", "anyio", "trio"))
    report.print_environment()
    many = MANY // 5 if arguments.quick else MANY
    of_bytes = [measure_bytes(backend) for backend in BACKENDS]
    of_cancelling = [measure_cancelling(backend, many) for backend in BACKENDS]
    of_idling = [measure_idling(backend) for backend in BACKENDS]
    report.rows = [*of_bytes, *of_cancelling, *of_idling]
    heads = ("what", "loop", "base", "Shoal", "difference", "target")
    print_table(heads, [_as_texts(row) for row in report.rows])
    report.finish(
        f"a queued request takes {max(row['value'] for row in of_bytes):.0f} bytes beyond its "
        f"caller's task, one of {many:,} is cancelled for "
        f"{max(row['value'] for row in of_cancelling):.1f} times what one of {many // 10:,} costs, "
        f"and idle batchers wake up {max(row['value'] for row in of_idling)} times.",
        [
            Panel(
                "Memory of a caller that waits",
                "bytes",
                BACKENDS,
                {
                    "parked task": [row["parked_task"] for row in of_bytes],
                    "queued request": [row["queued_request"] for row in of_bytes],
                },
            ),
            Panel(
                "Time to cancel a queued request",
                "microseconds",
                BACKENDS,
                {
                    f"of {int(callers):,}": [row["cancel_us"][callers] for row in of_cancelling]
                    for callers in of_cancelling[0]["cancel_us"]
                },
            ),
        ],
    )


if __name__ == "__main__":
    main()
