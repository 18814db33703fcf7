"""What the rule that forms batches is worth under load: the engine's against two others.

Requests arrive at random (a Poisson process, the same one for each rule) while one handler is busy
for most of the time. What is measured is the handler's batches, and how long each request took from
its arrival to its result, until the last has been answered.

Time is virtual: trio's clock jumps to the next deadline whenever every task waits. So the figures
are those of the rule alone, exact, the same on every machine, and a minute of load takes a moment.

How to read a mean batch: where a rule keeps up with the load, it is the rate of arrivals times the
time from one batch to the next, whatever the rule. Small ones tell of a rule that falls behind (see
the p99 and the time to drain). But a rule can also make them larger by letting a free handler idle,
which serves nobody; so the share of the time for which the handler was busy stands beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # as a script it would find http.py here before the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.testing import MockClock

import shoal
from benchmarks.other_rules import TimerCloses, WaitStartsAnew, opened
from benchmarks.report import Panel, Report, parser, print_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Call = Callable[[float], Awaitable[float]]

MAX_BATCH_SIZE: Final = 128
BATCH_WAIT_TIMEOUT_S: Final = 0.01
SEED: Final = 20

TODAY: Final = "timer closes"
FIRST: Final = "wait anew"
RULES: Final = ("Shoal", TODAY, FIRST)


@dataclass(frozen=True)
class Load:
    """One scenario: how often requests come, and how long the handler takes for them."""

    requests_a_second: int
    handler_s: float
    handler_s_an_item: float = 0.0

    def __str__(self) -> str:
        handler = f"{self.handler_s * 1e3:.0f} ms"
        if self.handler_s_an_item:
            handler += f" + {self.handler_s_an_item * 1e3:g} ms an item"
        return f"{self.requests_a_second:,}/s, {handler}"


# The first is the one that the promise is about; the others show where the rules differ less.
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
    """What one rule did with one load."""

    batches: list[int] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    took_s: float = 0.0

    def percentile_ms(self, percent: float) -> float:
        """Returns the latency that so many percent of the requests stayed within."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e3


@asynccontextmanager
async def under(rule: str, handler: Callable[[list[float]], Any]) -> AsyncIterator[Call]:
    """Opens a handler whose batches are formed by a rule."""
    if rule == "Shoal":
        async with shoal.Batcher(
            handler, max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_TIMEOUT_S
        ) as call:
            yield call
    else:
        kind = TimerCloses if rule == TODAY else WaitStartsAnew
        async with opened(kind, handler, MAX_BATCH_SIZE, BATCH_WAIT_TIMEOUT_S) as call:
            yield call


async def drive(rule: str, load: Load, duration_s: float) -> Seen:
    """Puts a rule under a load, and waits until every request has been answered."""
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
    """Puts every rule under every load."""
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


def _cells(row: dict[str, Any]) -> list[str]:
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
    """Says what the first load showed."""
    ours, today, first = rows[: len(RULES)]
    return (
        f"at {ours['load']} a batch, Shoal's batches are "
        f"{ours['mean_batch'] / today['mean_batch']:.1f} times as large as where the timer closes "
        f"them, with a p99 of {ours['p99_ms']:,.0f} ms to {today['p99_ms']:,.0f} ms; where the "
        f"wait starts anew the p99 is {first['p99_ms']:,.0f} ms, and batches are "
        f"{first['mean_batch'] / ours['mean_batch']:.2f} times as large as Shoal's only by the "
        f"requests that come while the handler, free, is made to wait "
        f"({100 - first['busy_percent']:.0f}% of the time)."
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
    made = parser("What three rules that form batches do under the same loads.", "rules")
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
    print_table(heads, [_cells(row) for row in report.rows])
    report.finish(
        _sentence(report.rows),
        [
            _panel(report.rows, "Mean batch", "requests", "mean_batch"),
            _panel(report.rows, "Latency, 99th percentile", "milliseconds", "p99_ms"),
        ],
    )


if __name__ == "__main__":
    main()
