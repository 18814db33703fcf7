"""What the rules that form batches cost, in the engine and by the length of the line.

The first half is a closed loop of 256 callers whose handler does nothing, once with the options
that a call always has, and once with priorities, buckets, costs and deadlines, all of them on: the
ratio is what the four together cost a call.

The second half asks the line alone, without an event loop, for each kind of rule: what letting a
request in and handing it out costs while 10, 1,000 or 100,000 others wait. It must grow no faster
than the logarithm of their number does.

Both halves count CPU time, since nothing here waits.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # as a script it would find http.py here before the standard library's
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
    """What an item takes up of a batch."""
    return 1


def key_of(item: int) -> int:
    """What the items of one batch have in common."""
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
    """A handler that does nothing."""
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
    """Measures calls with the usual options and with all on, in turn."""
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


class Line:
    """A line that is kept at one length: as many come as are handed out."""

    def __init__(self, options: Mapping[str, Any], length: int) -> None:
        self._options = shoal.BatchOptions(**{**PLAIN, **options})
        self._terms = RequestOptionsFactory("a line", self._options)
        self._former = Former(self._options)
        self._former.reform(idle_slots=0)
        self._random = random.Random(SEED)
        self._now = 0.0
        self._let_in(length)

    def cost_of_a_request(self, requests: int) -> float:
        """Returns the CPU time of letting one in and handing one out, in microseconds."""
        gc.collect()
        handed_out = 0
        began = time.thread_time()
        while handed_out < requests:
            self._now += 0.001
            taken = self._hand_out()
            handed_out += taken
            self._let_in(taken)
        return (time.thread_time() - began) / handed_out * 1e6

    def _let_in(self, requests: int) -> None:
        former, terms, levels = self._former, self._terms, self._options.priority_levels
        for _ in range(requests):
            request = Request()
            request.item = item = self._random.randrange(1_000_000)
            request.arrived_at = self._now
            request.options = None
            request.error = request.batch = None
            if terms.of_each:
                wishes = CallOptions(priority=1 + item % levels, deadline_s=1 + item % 29)
                request.options = terms.of(item, wishes, self._now)
            request.state = State.QUEUED
            former.arrive(request)

    def _hand_out(self) -> int:
        decision = self._former.decide(self._now + math.ulp(self._now))
        if not isinstance(decision, shoal.Dispatch):
            assert decision.until is not None
            self._now = decision.until
            return 0
        taken = self._former.take(decision)
        for request in taken:
            request.state = State.RUNNING
        return len(taken)


def measure_lines(requests: int, rounds: int) -> list[dict[str, Any]]:
    """Measures each rule at each length, in turn."""
    rows = []
    for name, options in RULES.items():
        figures: dict[int, list[float]] = {length: [] for length in LENGTHS}
        lines = {length: Line(options, length) for length in LENGTHS}
        for _ in range(rounds):
            for length, line in lines.items():
                figures[length].append(line.cost_of_a_request(requests))
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
    arguments = parser("What the rules that form batches cost.", "forming").parse_args()
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
    lines = measure_lines(5_000 if arguments.quick else 50_000, rounds)
    print_table(
        ("rule", *(f"{length:,} wait, us" for length in LENGTHS), "growth", "target"),
        [
            [
                row["rule"],
                *(f"{row['us'][length]:.2f}" for length in LENGTHS),
                f"{row['growth']:.2f}",
                verdict(row["growth"], at_most=row["at_most"]),
            ]
            for row in lines
        ],
    )
    report.rows = [*calls, *lines]
    worst = max(row["growth"] for row in lines)
    report.finish(
        "priorities, buckets, costs and deadlines together make a call "
        f"{calls[0]['ratio']:.2f} times as dear on trio and {calls[1]['ratio']:.2f} times on "
        "asyncio; and with ten thousand times as many in line, a request costs at most "
        f"{worst:.1f} times as much.",
        [
            Panel(
                title="A request, by how many wait",
                unit="microseconds",
                groups=list(RULES),
                series={f"{length:,}": [row["us"][length] for row in lines] for length in LENGTHS},
            )
        ],
    )


if __name__ == "__main__":
    main()
