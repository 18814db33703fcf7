"""The cost of a call in process, as a multiple of the minimum cost of batching.

The load is a closed loop: each of N callers makes its next call when it has the answer to its last,
so the cost of a call is the time of the loop divided by the number of calls. Handlers do nothing.
The floor (floors.py) and the engine take turns in the same process; each figure is the median of
the rounds, each ratio the median of the ratios of a round. Garbage collection is on, as by default.

Times are wall-clock times, so that delays in the engine are included. They also include delays by
other processes, so the ratio of the CPU times is shown as well: on an idle machine both are alike.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import gc
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

import shoal
from benchmarks import floors
from benchmarks.report import Panel, Report, parser, print_table, verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    MakeFloor = Callable[[floors.Handler, int], floors.UnaryFloor]

BACKENDS: Final = ("trio", "asyncio")
CALLERS: Final = (16, 256, 1024)
MAX_BATCH_SIZE: Final = 64
# How many items a stream has. The shorter streams are, the more of the cost is their set-up.
SHORT_STREAM: Final = 16
STREAM_LENGTHS: Final = (4, SHORT_STREAM, 64)
MAP_ITEMS: Final = 1000

# The targets: multiples of the floor, and for `map` microseconds per item.
UNARY_TARGETS: Final = {"trio": 1.35, "asyncio": 1.8}
STREAM_TARGETS: Final = {"trio": 1.4}
MAP_TARGET_US: Final = 0.6


async def echo(items: list[Any]) -> list[Any]:
    """Does nothing, as a handler."""
    return items


def echo_steps(length: int) -> Callable[[list[Any]], AsyncIterator[list[Any]]]:
    """Returns a generator handler that yields the items several times."""

    async def echo_items(items: list[Any]) -> AsyncIterator[list[Any]]:
        for _ in range(length):
            yield items

    return echo_items


# The queue is bounded, so that the bound is checked; the load never reaches it.
batched = shoal.batch(max_batch_size=MAX_BATCH_SIZE, max_queued_requests=1_000_000)
unary = batched(echo)
streamed = {length: batched(echo_steps(length)) for length in STREAM_LENGTHS}


@dataclass(frozen=True)
class Cost:
    """Microseconds for each counted unit."""

    wall_us: float
    cpu_us: float


class Stopwatch:
    """Measures the time of its block."""

    def __enter__(self) -> Self:
        gc.collect()
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._wall = time.perf_counter() - self._wall
        self._cpu = time.thread_time() - self._cpu

    def each(self, count: int) -> Cost:
        """Returns the cost of one of `count` units of the block."""
        return Cost(self._wall / count * 1e6, self._cpu / count * 1e6)


@asynccontextmanager
async def engine(function: Any) -> AsyncIterator[Any]:
    """Opens the engine's function."""
    async with shoal.open_batchers(function):
        yield function


@asynccontextmanager
async def floor(made: floors.UnaryFloor | floors.StreamFloor) -> AsyncIterator[Any]:
    """Opens a floor."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made.call
        tasks.cancel_scope.cancel()


def stream_floor(backend: str, length: int) -> AbstractAsyncContextManager[Any]:
    """Opens the floor of a streamed item, in its event loop."""
    make = floors.streams_on_trio if backend == "trio" else floors.streams_on_asyncio
    return floor(make(echo_steps(length), MAX_BATCH_SIZE))


async def call_in_a_loop(call: Callable[[int], Coroutine[Any, Any, int]], times: int) -> None:
    """Calls a unary function in a loop."""
    for item in range(times):
        assert await call(item) == item


async def read_floor_in_a_loop(
    length: int, call: Callable[[int], AsyncIterator[int]], times: int
) -> None:
    """Reads streams of the floor in a loop."""
    for item in range(times):
        got = 0
        async for _ in call(item):
            got += 1
        assert got == length


async def read_in_a_loop(
    length: int, call: Callable[[int], shoal.ResultStream[int]], times: int
) -> None:
    """Reads streams of the engine in a loop."""
    for item in range(times):
        got = 0
        async with call(item) as stream:
            async for _ in stream:
                got += 1
        assert got == length


def timed(
    backend: str,
    open_subject: Callable[[], AbstractAsyncContextManager[Any]],
    caller: Callable[[Any, int], Coroutine[Any, Any, None]],
    callers: int,
    calls: int,
    units_a_call: int = 1,
) -> Cost:
    """Runs a closed loop in its own event loop; returns the cost of a unit."""
    times = max(1, calls // callers)

    async def loop() -> Cost:
        async with open_subject() as subject:
            with Stopwatch() as watch:
                async with anyio.create_task_group() as tasks:
                    for _ in range(callers):
                        tasks.start_soon(caller, subject, times)
            return watch.each(callers * times * units_a_call)

    return anyio.run(loop, backend=backend)


def timed_map(backend: str, calls: int) -> Cost:
    """Returns the cost of an item of `map`."""

    async def loop() -> Cost:
        async with shoal.open_batchers(unary):
            with Stopwatch() as watch:
                for _ in range(calls):
                    results = await unary.map(range(MAP_ITEMS))
            assert results == list(range(MAP_ITEMS))
            return watch.each(calls * MAP_ITEMS)

    return anyio.run(loop, backend=backend)


def compare(
    measure_floor: Callable[[], Cost], measure_engine: Callable[[], Cost], rounds: int
) -> dict[str, float]:
    """Measures both in turn, after a warm-up round."""
    measure_floor()
    measure_engine()
    pairs = [(measure_floor(), measure_engine()) for _ in range(rounds)]
    return {
        "floor_us": median(floor.wall_us for floor, _ in pairs),
        "shoal_us": median(ours.wall_us for _, ours in pairs),
        "ratio": median(ours.wall_us / floor.wall_us for floor, ours in pairs),
        "cpu_ratio": median(ours.cpu_us / floor.cpu_us for floor, ours in pairs),
    }


def compare_calls(
    backend: str, callers: int, calls: int, rounds: int, make: MakeFloor | None = None
) -> dict[str, float]:
    """Measures unary calls, beside the floor of the event loop or another one."""
    made = make or (floors.on_trio if backend == "trio" else floors.on_asyncio)
    return compare(
        lambda: timed(
            backend, lambda: floor(made(echo, MAX_BATCH_SIZE)), call_in_a_loop, callers, calls
        ),
        lambda: timed(backend, lambda: engine(unary), call_in_a_loop, callers, calls),
        rounds,
    )


def compare_streams(
    backend: str, callers: int, length: int, items: int, rounds: int
) -> dict[str, float]:
    """Measures items of streams of some length."""

    def measured(subject: Callable[[], AbstractAsyncContextManager[Any]], read: Any) -> Cost:
        reader = partial(read, length)
        return timed(backend, subject, reader, callers, items // length, length)

    return compare(
        lambda: measured(lambda: stream_floor(backend, length), read_floor_in_a_loop),
        lambda: measured(lambda: engine(streamed[length]), read_in_a_loop),
        rounds,
    )


def measure(calls: int, rounds: int) -> list[dict[str, Any]]:
    """Measures everything."""
    rows: list[dict[str, Any]] = []
    for backend, callers in product(BACKENDS, CALLERS):
        figures = compare_calls(backend, callers, calls, rounds)
        target = UNARY_TARGETS[backend] if callers == 256 else None
        rows.append(_row("unary call", backend, callers, figures, target))
    figures = compare_calls("trio", 256, calls, rounds, floors.on_trio_with_one_outcome)
    rows.append(_row("unary call, one outcome", "trio", 256, figures, None))
    for backend, length, callers in product(BACKENDS, STREAM_LENGTHS, CALLERS):
        if length != SHORT_STREAM and callers != 256:
            continue
        figures = compare_streams(backend, callers, length, 2 * calls, rounds)
        target = STREAM_TARGETS.get(backend) if callers == 256 else None
        rows.append(_row(f"item of {length} streamed", backend, callers, figures, target))
    for backend in BACKENDS:
        costs = [timed_map(backend, calls // 1000) for _ in range(rounds + 1)][1:]
        figures = {"shoal_us": median(cost.wall_us for cost in costs)}
        rows.append(_row("item of map", backend, 1, figures, MAP_TARGET_US))
    return rows


def _row(
    what: str, backend: str, callers: int, figures: dict[str, float], target: float | None
) -> dict[str, Any]:
    row = {"what": what, "backend": backend, "callers": callers, **figures, "target": target}
    reached = figures.get("ratio", figures["shoal_us"])
    row["verdict"] = verdict(reached, at_most=target)
    return row


def _as_texts(row: dict[str, Any]) -> list[str]:
    figures = [row.get(key) for key in ("floor_us", "shoal_us", "ratio", "cpu_ratio")]
    return [
        row["what"],
        row["backend"],
        str(row["callers"]),
        *("-" if figure is None else f"{figure:.2f}" for figure in figures),
        row["verdict"],
    ]


def _panel(rows: list[dict[str, Any]], backend: str) -> Panel:
    here = [row for row in rows if row["backend"] == backend]
    return Panel(
        title=f"On {backend}",
        unit="microseconds",
        groups=[f"{row['what']}\n{row['callers']:,} callers".replace(" ", "\n") for row in here],
        series={
            "floor": [row.get("floor_us") for row in here],
            "Shoal": [row["shoal_us"] for row in here],
        },
    )


def main() -> None:
    """Runs the benchmark."""
    arguments = parser(
        "The cost of a call in process, relative to the floor.", "inproc"
    ).parse_args()
    report = Report("inproc", arguments.json, ("shoal", "anyio", "trio"))
    report.print_environment()
    rounds = 3 if arguments.quick else 7
    report.rows = measure(20_000 if arguments.quick else 100_000, rounds)
    heads = ("what", "loop", "callers", "floor us", "shoal us", "ratio", "CPU ratio", "target")
    print_table(heads, [_as_texts(row) for row in report.rows])
    at_256 = {
        row["backend"]: row for row in report.rows[: 2 * len(CALLERS)] if row["callers"] == 256
    }
    report.finish(
        "a call with bounds, counters, contexts and cancellation costs "
        f"{at_256['trio']['ratio']:.2f} times the minimum on trio and "
        f"{at_256['asyncio']['ratio']:.2f} times the minimum on asyncio, at 256 callers.",
        [_panel(report.rows, backend) for backend in BACKENDS],
    )


if __name__ == "__main__":
    main()
