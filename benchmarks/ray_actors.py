"""The cost of a Ray replica to the program: its processor time for a batch, beside a bare call.

The rounds of all cases are interleaved, so that other load on the machine affects all of them. The
result is the median of the rounds. The processor time includes Ray's own threads in this process.
It needs an environment with Ray and a running cluster, of which ``RAY_ADDRESS`` is the address.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import statistics
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from benchmarks.report import Panel, Report, parser, print_table, verdict
from shoal.batching.current import Identity, running_batch, setting
from shoal.core.request import Batch, DispatchReason
from shoal.loops.event_loop import EventLoop
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.testing.policies import make_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BACKENDS: Final = ("trio", "asyncio")
TARGET_MS: Final = 0.45
AT_ONCE: Final = 8
SIZES: Final = (1, 64)


class Code:
    """The code that runs in the actor."""

    def __call__(self, items: list[Any]) -> list[Any]:
        """Returns a minimal result."""
        return [0] * len(items)


def batch_of(size: int) -> Batch:
    """Returns a batch of small items."""
    requests = [make_request({"text": "a few words", "id": number}) for number in range(size)]
    for request in requests:
        request.options = None  # as of plain calls
    return Batch(1, DispatchReason.FULL, requests)


async def milliseconds(call: Callable[[], Awaitable[object]], calls: int) -> tuple[float, float]:
    """Returns the processor time and the time of a call; several run at once."""

    async def some() -> None:
        for _ in range(calls // AT_ONCE):
            await call()

    began, processor = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(some)
    done = calls // AT_ONCE * AT_ONCE
    took, used = time.perf_counter() - began, time.process_time() - processor
    return used / done * 1e3, took / done * 1e3


def _soon_set(soon: Callable[..., object], done: anyio.Event, _: object) -> None:
    soon(done.set)


async def measure(rounds: int, calls: int) -> dict[str, list[tuple[float, float]]]:
    """Measures all cases on the current event loop."""
    ray: Any = import_module("ray")
    replica_class: Any = import_module("shoal.replicas.ray.replica").RayReplica
    replica = replica_class(
        Blueprint(
            identity=Identity("benchmark", "benchmark#1"),
            definition=Definition("benchmarks.ray_actors:Code"),
            options=ReplicaOptions(),
            placement_options={"ray_options": {"num_cpus": 0.1}},
        )
    )
    soon = EventLoop.here().soon

    async def bare(actor: Any, items: list[Any]) -> None:
        future = actor.__call__.remote(items).future()
        done = anyio.Event()
        future.add_done_callback(partial(_soon_set, soon, done))
        await done.wait()
        future.result()

    async def shoal(batch: Batch, items: list[Any]) -> None:
        with setting(running_batch, batch):
            await replica.run("__call__", items)

    found: dict[str, list[tuple[float, float]]] = {}
    async with anyio.create_task_group() as tasks:
        await tasks.start(replica.serve)
        options = {"num_cpus": 0.1, "max_concurrency": AT_ONCE}
        made = ray.remote(Code).options(**options)
        actor = await anyio.to_thread.run_sync(made.remote)
        ways: dict[str, Callable[[], Awaitable[object]]] = {}
        for size in SIZES:
            batch = batch_of(size)
            items = [request.item for request in batch.members]
            ways[f"bare {size}"] = partial(bare, actor, items)
            ways[f"shoal {size}"] = partial(shoal, batch, items)
        for call in ways.values():
            await milliseconds(call, calls)
        for _ in range(rounds):
            for name, call in ways.items():
                found.setdefault(name, []).append(await milliseconds(call, calls))
        replica.stop()
    return found


def median(found: list[tuple[float, float]], index: int = 0) -> float:
    """Returns the median of the rounds."""
    return statistics.median([one[index] for one in found])


def main() -> None:
    """Runs the benchmark."""
    made = parser("The cost of a batch in a Ray actor to the program.", "ray_actors")
    arguments = made.parse_args()
    report = Report("ray_actors", arguments.json, ("shoal", "anyio", "trio", "ray"))
    report.print_environment()
    rounds, calls = (5, 400) if arguments.quick else (15, 1000)
    measured = {backend: anyio.run(measure, rounds, calls, backend=backend) for backend in BACKENDS}
    for backend, found in measured.items():
        for size in SIZES:
            bare, ours = found[f"bare {size}"], found[f"shoal {size}"]
            report.rows.append(
                {
                    "what": f"a batch of {size}",
                    "backend": backend,
                    "bare_ms": median(bare),
                    "shoal_ms": median(ours),
                    "shoal_batches_per_s": 1e3 / median(ours, 1),
                    "verdict": verdict(median(ours), at_most=TARGET_MS),
                }
            )
    print_table(
        ("what", "loop", "bare ms", "shoal ms", "shoal batches/s", "target"),
        [
            [
                row["what"],
                row["backend"],
                f"{row['bare_ms']:.2f}",
                f"{row['shoal_ms']:.2f}",
                f"{row['shoal_batches_per_s']:,.0f}",
                row["verdict"],
            ]
            for row in report.rows
        ],
    )
    worst = max(report.rows, key=lambda row: row["shoal_ms"])
    report.finish(
        f"a batch in an actor costs the program at most {worst['shoal_ms']:.2f} ms of processor "
        f"time, and a bare call with the same items {worst['bare_ms']:.2f} ms.",
        [
            Panel(
                "Processor time for a batch",
                "milliseconds",
                [f"{row['what']}, {row['backend']}" for row in report.rows],
                {name: [row[f"{name}_ms"] for row in report.rows] for name in ("bare", "shoal")},
                target=TARGET_MS,
            )
        ],
    )


if __name__ == "__main__":
    main()
