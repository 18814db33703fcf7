"""The rule that forms batches under load: the engine's compared with two others.

Requests arrive at random (a Poisson process, the same one for each rule) while one handler is busy
most of the time. The benchmark measures the handler's batches, and the time of each request from
its arrival to its result, until the last one is answered.

Time is virtual: trio's clock jumps to the next deadline whenever every task waits. So the figures
show only the rule, are exact and the same on every machine, and a minute of load takes a moment.

How to read a mean batch: where a rule keeps up with the load, it is the arrival rate times the time
from one batch to the next, for every rule. A small mean batch shows a rule that falls behind (see
the p99 and the time to drain). But a rule can also enlarge batches by leaving a free handler idle,
which has no benefit. So the table also shows the share of the time for which the handler was busy.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.testing import MockClock

import shoal
from benchmarks.other_rules import TimerCloses, WaitRestarts, opened
from benchmarks.report import Panel, Report, parser, print_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Call = Callable[[float], Awaitable[float]]

MAX_BATCH_SIZE: Final = 128
BATCH_WAIT_TIMEOUT_S: Final = 0.01
SEED: Final = 20

TODAY: Final = "timer closes"
FIRST: Final = "wait again"
RULES: Final = ("Shoal", TODAY, FIRST)


@dataclass(frozen=True)
class Load:
    """One scenario: the rate of requests and the run time of the handler."""

    requests_a_second: int
    handler_s: float
    handler_s_an_item: float = 0.0

    def __str__(self) -> str:
        handler = f"{self.handler_s * 1e3:.0f} ms"
        if self.handler_s_an_item:
            handler += f" + {self.handler_s_an_item * 1e3:g} ms an item"
        return f"{self.requests_a_second:,}/s, {handler}"


# The first has the target; the others show where the rules differ less.
LOADS: Final = (
    Load(1000, 0.1),
    Load(500, 0.1),
    Load(2000, 0.1),
    Load(500, 0.02, 0.001),
    Load(1000, 0.02, 0.0005),
    Load(100, 0.005),
)


@dataclass
class Seen:
    """The results of one rule under one load."""

    batches: list[int] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    took_s: float = 0.0

    def percentile_ms(self, percent: float) -> float:
        """Returns a percentile of the latencies."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e3


@asynccontextmanager
async def under(rule: str, handler: Callable[[list[float]], Any]) -> AsyncIterator[Call]:
    """Opens a batcher of a handler with the given rule."""
    if rule == "Shoal":
        async with shoal.Batcher(
            handler, max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_TIMEOUT_S
        ) as call:
            yield call
    else:
        kind = TimerCloses if rule == TODAY else WaitRestarts
        async with opened(kind, handler, MAX_BATCH_SIZE, BATCH_WAIT_TIMEOUT_S) as call:
            yield call


async def drive(rule: str, load: Load, duration_s: float) -> Seen:
    """Runs a load with a rule, until every request has been answered."""
    seen = Seen()
    chance = random.Random(SEED)

    async def handler(items: list[float]) -> list[float]:
        busy_s = load.handler_s + load.handler_s_an_item * len(items)
        seen.batches.append(len(items))
        seen.busy_s += busy_s
        await trio.sleep(busy_s)
        return items

    async with under(rule, handler) as call:

        async def caller(arrived_at: float) -> None:
            assert await call(arrived_at) == arrived_at
            seen.latencies_s.append(trio.current_time() - arrived_at)

        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            at = began_at
            while (at := at + chance.expovariate(load.requests_a_second)) < began_at + duration_s:
                await trio.sleep_until(at)
                nursery.start_soon(caller, at)
        seen.took_s = trio.current_time() - began_at
    assert sum(seen.batches) == len(seen.latencies_s)
    return seen


def measure(duration_s: float) -> list[dict[str, Any]]:
    """Runs every load with every rule."""
    rows = []
    for load in LOADS:
        for rule in RULES:
            seen = trio.run(drive, rule, load, duration_s, clock=MockClock(autojump_threshold=0))
            rows.append(
                {
                    "load": str(load),
                    "rule": rule,
                    "requests": len(seen.latencies_s),
                    "mean_batch": mean(seen.batches),
                    "p50_ms": seen.percentile_ms(50),
                    "p99_ms": seen.percentile_ms(99),
                    "busy_percent": seen.busy_s / seen.took_s * 100,
                    "drained_after_s": seen.took_s - duration_s,
                }
            )
    return rows


def _as_texts(row: dict[str, Any]) -> list[str]:
    return [
        row["load"],
        row["rule"],
        f"{row['mean_batch']:.1f}",
        f"{row['p50_ms']:,.0f}",
        f"{row['p99_ms']:,.0f}",
        f"{row['busy_percent']:.0f}",
        f"{row['drained_after_s']:.1f}",
    ]


def _sentence(rows: list[dict[str, Any]]) -> str:
    """Returns a sentence with the result of the first load."""
    ours, today, first = rows[: len(RULES)]
    return (
        f"at {ours['load']} a batch, Shoal's batches are "
        f"{ours['mean_batch'] / today['mean_batch']:.1f} times as large as where the timer closes "
        f"them, with a p99 of {ours['p99_ms']:,.0f} ms compared with {today['p99_ms']:,.0f} ms; "
        f"where the wait starts again the p99 is {first['p99_ms']:,.0f} ms, and batches are "
        f"{first['mean_batch'] / ours['mean_batch']:.2f} times as large as Shoal's, because the "
        f"free handler waits for requests {100 - first['busy_percent']:.0f}% of the time."
    )


def _panel(rows: list[dict[str, Any]], title: str, unit: str, key: str) -> Panel:
    return Panel(
        title,
        unit,
        [str(load).replace(", ", "\n").replace(" + ", "\n+ ") for load in LOADS],
        {rule: [row[key] for row in rows if row["rule"] == rule] for rule in RULES},
        logarithmic=True,
    )


def main() -> None:
    """Runs the benchmark."""
    made = parser("Three rules that form batches, under the same loads.", "rules")
    arguments = made.parse_args()
    report = Report("rules", arguments.json, ("shoal", "anyio", "trio"))
    report.print_environment()
    duration_s = 4.0 if arguments.quick else 20.0
    print(
        f"{duration_s:g} s of load in virtual time, seed {SEED}, max_batch_size={MAX_BATCH_SIZE}, "
        f"batch_wait_timeout_s={BATCH_WAIT_TIMEOUT_S}\n"
    )
    report.rows = measure(duration_s)
    heads = ("load and handler", "rule", "mean batch", "p50 ms", "p99 ms", "busy %", "drain s")
    print_table(heads, [_as_texts(row) for row in report.rows])
    report.finish(
        _sentence(report.rows),
        [
            _panel(report.rows, "Mean batch", "requests", "mean_batch"),
            _panel(report.rows, "Latency, 99th percentile", "milliseconds", "p99_ms"),
        ],
    )


if __name__ == "__main__":
    main()
