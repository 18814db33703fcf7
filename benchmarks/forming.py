"""The cost of the rules that form batches, in the engine and by the length of the queue.

The first half is a closed loop of 256 callers whose handler does nothing, once with default
options, and once with priorities, buckets, costs and deadlines. The ratio is the cost of the four
together for a call.

The second half uses the queue alone, without an event loop, for each kind of rule. It measures the
cost of adding a request and dispatching it while 10, 1,000 or 100,000 others wait. The cost must
not grow faster than the logarithm of their number.

Both halves measure CPU time, since nothing here waits.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import gc
import math
import random
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import anyio

import shoal
from benchmarks.report import Panel, Report, parser, print_table, verdict
from shoal.core.forming.call_options import CallOptions, RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKENDS: Final = ("trio", "asyncio")
CALLERS: Final = 256
MAX_BATCH_SIZE: Final = 64
LENGTHS: Final = (10, 1_000, 100_000)
SEED: Final = 20

ALL_ON_TARGET: Final = 1.5

PLAIN: Final[Mapping[str, Any]] = {
    "max_batch_size": MAX_BATCH_SIZE,
    "max_queued_requests": 1_000_000,
}


def cost_of(item: int) -> int:
    """Returns the cost of an item."""
    return 1


def key_of(item: int) -> int:
    """Returns the bucket of an item."""
    return item & 1


ALL_ON: Final[Mapping[str, Any]] = {
    **PLAIN,
    "priority_levels": 3,
    "bucket_by": key_of,
    "batch_size_fn": cost_of,
    "request_timeout_s": 30.0,
}

RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "size or wait": {},
    "levels": {"priority_levels": 3},
    "strict levels": {"priority_levels": 3, "priority_aging_s": None},
    "earliest deadline": {"order": "deadline", "request_timeout_s": 30.0},
    "costs": {"batch_size_fn": cost_of},
    "1,000 buckets": {"bucket_by": lambda item: item % 1000},
    "all of them": {
        **ALL_ON,
        "order": "deadline",
        "bucket_by": lambda item: item % 1000,
        "batch_wait_timeout_s": 0.01,
    },
}


async def echo(items: list[int]) -> list[int]:
    """Does nothing, as a handler."""
    return items


def cost_of_a_call(options: Mapping[str, Any], backend: str, calls: int) -> float:
    """Returns the CPU time of one call in a closed loop, in microseconds."""
    function: Any = shoal.batch(**options)(echo)
    times = calls // CALLERS

    async def caller() -> None:
        for item in range(times):
            await function(item)

    async def loop() -> float:
        async with shoal.open_batchers(function):
            gc.collect()
            began = time.thread_time()
            async with anyio.create_task_group() as tasks:
                for _ in range(CALLERS):
                    tasks.start_soon(caller)
            return (time.thread_time() - began) / (times * CALLERS) * 1e6

    return anyio.run(loop, backend=backend)


def compare_calls(backend: str, calls: int, rounds: int) -> dict[str, Any]:
    """Measures calls with default options and with all options, in turn."""
    pairs = [
        (cost_of_a_call(PLAIN, backend, calls), cost_of_a_call(ALL_ON, backend, calls))
        for _ in range(rounds + 1)
    ][1:]
    ratio = median(all_on / plain for plain, all_on in pairs)
    return {
        "what": f"a call on {backend}",
        "plain_us": median(plain for plain, _ in pairs),
        "all_on_us": median(all_on for _, all_on in pairs),
        "ratio": ratio,
        "verdict": verdict(ratio, at_most=ALL_ON_TARGET),
    }


class FixedQueue:
    """A queue of constant length: as many requests are added as are dispatched."""

    def __init__(self, options: Mapping[str, Any], length: int) -> None:
        self._options = shoal.BatchOptions(**{**PLAIN, **options})
        self._factory = RequestOptionsFactory("a queue", self._options)
        self._former = Former(self._options)
        self._former.idle_slots = 0
        self._random = random.Random(SEED)
        self._now = 0.0
        self._add(length)

    def cost_of_a_request(self, requests: int) -> float:
        """Returns the CPU time of adding and dispatching a request, in microseconds."""
        gc.collect()
        dispatched = 0
        began = time.thread_time()
        while dispatched < requests:
            self._now += 0.001
            taken = self._dispatch()
            dispatched += taken
            self._add(taken)
        return (time.thread_time() - began) / dispatched * 1e6

    def _add(self, requests: int) -> None:
        former, factory, levels = self._former, self._factory, self._options.priority_levels
        for _ in range(requests):
            request = Request()
            request.item = item = self._random.randrange(1_000_000)
            request.arrived_at = self._now
            request.options = None
            request.error = request.batch = None
            if factory.of_each:
                options = CallOptions(priority=1 + item % levels, timeout_s=1 + item % 29)
                request.options = factory.of(item, options, self._now)
            request.state = State.QUEUED
            former.admit(request)

    def _dispatch(self) -> int:
        decision = self._former.decide(self._now + math.ulp(self._now))
        if not isinstance(decision, shoal.policies.Dispatch):
            assert decision.until is not None
            self._now = decision.until
            return 0
        taken = self._former.take(decision)
        for request in taken:
            request.state = State.RUNNING
        return len(taken)


def measure_queues(requests: int, rounds: int) -> list[dict[str, Any]]:
    """Measures each rule at each length, in turn."""
    rows = []
    for name, options in RULES.items():
        figures: dict[int, list[float]] = {length: [] for length in LENGTHS}
        queues = {length: FixedQueue(options, length) for length in LENGTHS}
        for _ in range(rounds):
            for length, queue in queues.items():
                figures[length].append(queue.cost_of_a_request(requests))
        by_length = {length: median(costs) for length, costs in figures.items()}
        shortest, longest = LENGTHS[0], LENGTHS[-1]
        rows.append(
            {
                "rule": name,
                "us": by_length,
                "growth": by_length[longest] / by_length[shortest],
                "at_most": math.log2(longest) / math.log2(shortest),
            }
        )
    return rows


def main() -> None:
    """Runs the benchmark."""
    arguments = parser("The cost of the rules that form batches.", "forming").parse_args()
    report = Report("forming", arguments.json, ("shoal", "anyio", "trio"))
    report.print_environment()
    rounds = 3 if arguments.quick else 7
    calls = [
        compare_calls(backend, 20_000 if arguments.quick else 100_000, rounds)
        for backend in BACKENDS
    ]
    print_table(
        ("what", "plain us", "all on us", "ratio", "target"),
        [
            [
                row["what"],
                f"{row['plain_us']:.2f}",
                f"{row['all_on_us']:.2f}",
                f"{row['ratio']:.2f}",
                row["verdict"],
            ]
            for row in calls
        ],
    )
    print()
    queues = measure_queues(5_000 if arguments.quick else 50_000, rounds)
    print_table(
        ("rule", *(f"{length:,} wait, us" for length in LENGTHS), "growth", "target"),
        [
            [
                row["rule"],
                *(f"{row['us'][length]:.2f}" for length in LENGTHS),
                f"{row['growth']:.2f}",
                verdict(row["growth"], at_most=row["at_most"]),
            ]
            for row in queues
        ],
    )
    report.rows = [*calls, *queues]
    worst = max(row["growth"] for row in queues)
    report.finish(
        "priorities, buckets, costs and deadlines together make a call "
        f"{calls[0]['ratio']:.2f} times as expensive on trio and {calls[1]['ratio']:.2f} times on "
        "asyncio; and in a queue ten thousand times as long, a request costs at most "
        f"{worst:.1f} times as much.",
        [
            Panel(
                title="Cost of a request, by queue length",
                unit="microseconds",
                groups=list(RULES),
                series={f"{length:,}": [row["us"][length] for row in queues] for length in LENGTHS},
            )
        ],
    )


if __name__ == "__main__":
    main()
