"""The cost of a process: a small call relative to a thread hop, a large batch relative to a copy.

The rounds of all cases are interleaved, so that other load on the machine affects all of them. The
result is the median of the ratios by round.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import numpy as np

from benchmarks.report import Panel, Report, parser, print_table, verdict
from shoal.batching.current import Identity
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.replicas.process.replica import ProcessReplica

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BACKENDS: Final = ("trio", "asyncio")
SMALL_TARGET: Final = 1.3
LARGE_TARGET: Final = 1.6
SMALL: Final = [{"text": "a few words", "id": number} for number in range(8)]
IMAGES: Final = 64
SHAPE: Final = (3, 224, 224)


class Code:
    """The code that runs in the process."""

    def __call__(self, items: list[Any]) -> list[Any]:
        """Returns a minimal result."""
        return [0] * len(items)

    def one_array(self, items: list[Any]) -> list[Any]:
        """Uses the batch as one array, like a model."""
        batch: Any = np.asarray(items)
        return [0] * len(batch)

    def echo(self, items: list[Any]) -> list[Any]:
        """Returns the whole batch."""
        return items


async def microseconds(call: Callable[[], Awaitable[object]], times: int) -> float:
    """Returns the cost of a call."""
    began = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - began) / times * 1e6


async def worst_delay(call: Callable[[], Awaitable[object]], times: int) -> float:
    """Returns the maximum delay of the event loop during calls, in microseconds."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            began = time.perf_counter()
            await anyio.sleep(0.001)
            worst = max(worst, time.perf_counter() - began - 0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        for _ in range(times):
            await call()
        tasks.cancel_scope.cancel()
    return worst * 1e6


async def measure(rounds: int, calls: int) -> dict[str, Any]:
    """Measures all cases on the current event loop."""
    images = [np.full(SHAPE, number, dtype="f4") for number in range(IMAGES)]
    batch = np.stack(images)
    target = np.empty_like(batch)
    replica = ProcessReplica(
        Blueprint(
            identity=Identity("benchmark", "benchmark#1"),
            definition=Definition("benchmarks.process:Code"),
            options=ReplicaOptions(),
        )
    )

    async def hop() -> None:
        await anyio.to_thread.run_sync(lambda: [0] * len(SMALL))

    async def copy() -> None:
        np.copyto(target, batch)

    async def stack() -> None:
        np.stack(images)

    ways: dict[str, tuple[Callable[[], Awaitable[object]], int]] = {
        "thread": (hop, calls),
        "small": (partial(replica.run, "__call__", SMALL), calls),
        "memcpy": (copy, 5),
        "stack": (stack, 2),
        "images in": (partial(replica.run, "one_array", images), 5),
        "array in": (partial(replica.run, "__call__", [batch]), 5),
        "echo": (partial(replica.run, "echo", [batch]), 2),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: replica.serve(task_status=task_status))
        start_s = time.perf_counter() - began
        for call, _ in ways.values():
            await call()
        for _ in range(rounds):
            for name, (call, times) in ways.items():
                found[name].append(await microseconds(call, times))
        late_us = await worst_delay(ways["images in"][0], 20)
        replica.stop()
    return {"start_s": start_s, "late_us": late_us, "microseconds": found}


def ratio(found: dict[str, list[float]], name: str, base: str) -> float:
    """Returns the median of the ratios of two costs by round."""
    return statistics.median(a / b for a, b in zip(found[name], found[base], strict=True))


def rows_of(backend: str, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of one event loop."""
    found = measured["microseconds"]
    size = IMAGES * np.prod(SHAPE) * 4 / 1e6
    rows = []
    for what, name, base, target in (
        ("a small call / a hop to a thread", "small", "thread", SMALL_TARGET),
        (f"{size:.1f} MB of {IMAGES} images in / a copy", "images in", "memcpy", LARGE_TARGET),
        (f"{size:.1f} MB of one array in / a copy", "array in", "memcpy", LARGE_TARGET),
        (f"{size:.1f} MB of images in / numpy.stack", "images in", "stack", None),
        (f"{size:.1f} MB in and out / a copy", "echo", "memcpy", None),
    ):
        value = ratio(found, name, base)
        rows.append(
            {
                "what": what,
                "backend": backend,
                "base_us": statistics.median(found[base]),
                "process_us": statistics.median(found[name]),
                "value": value,
                "verdict": verdict(value, at_most=target),
            }
        )
    return rows


def main() -> None:
    """Runs the benchmark."""
    made = parser("The cost of a process: small calls and large arrays.", "process")
    arguments = made.parse_args()
    report = Report("process", arguments.json, ("shoal", "anyio", "trio", "numpy"))
    report.print_environment()
    rounds, calls = (5, 200) if arguments.quick else (30, 500)
    measured = {backend: anyio.run(measure, rounds, calls, backend=backend) for backend in BACKENDS}
    for backend in BACKENDS:
        report.rows += rows_of(backend, measured[backend])
    print_table(
        ("what", "loop", "base us", "process us", "ratio", "target"),
        [
            [
                row["what"],
                row["backend"],
                f"{row['base_us']:,.0f}",
                f"{row['process_us']:,.0f}",
                f"x {row['value']:.2f}",
                row["verdict"],
            ]
            for row in report.rows
        ],
    )
    small = [ratio(found["microseconds"], "small", "thread") for found in measured.values()]
    large = [ratio(found["microseconds"], "images in", "memcpy") for found in measured.values()]
    starts = max(found["start_s"] for found in measured.values())
    late = max(found["late_us"] for found in measured.values())
    report.finish(
        f"a small call costs {max(small):.2f} times a hop to a thread, a batch of images "
        f"{max(large):.2f} times a copy of it, while the event loop is late by {late / 1000:.1f} "
        f"ms at worst; a process that needs NumPy starts in {starts:.2f} s.",
        [
            Panel(
                "A small call",
                "microseconds",
                BACKENDS,
                {
                    name: [
                        statistics.median(measured[backend]["microseconds"][name])
                        for backend in BACKENDS
                    ]
                    for name in ("thread", "small")
                },
            ),
            Panel(
                "A batch of 64 images",
                "microseconds",
                BACKENDS,
                {
                    name: [
                        statistics.median(measured[backend]["microseconds"][name])
                        for backend in BACKENDS
                    ]
                    for name in ("memcpy", "stack", "images in", "array in", "echo")
                },
            ),
        ],
    )


if __name__ == "__main__":
    main()
