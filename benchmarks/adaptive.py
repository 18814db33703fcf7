"""Whether a latency target is met: by the adaptive rule, by fixed waits, and by BentoML's rule.

Each rule gets the same arrivals, handlers and targets. A handler takes a time per batch and a time
per item, with some noise. Requests arrive at random, in bursts, at a rate that rises and falls, or
from callers in loops; one handler becomes slower for a while. A request meets the target if its
result arrives in time; a shed request does not meet it.

Time is virtual: trio's clock jumps to the next deadline whenever every task waits. So the figures
show only the rule, and are the same on every machine. The start is included: the adaptive rule
starts without any knowledge of the handler, and BentoML's with its training.

The last two loads use the run times of the digits example, which are measured first. Then the
digits example itself runs in real time with Shoal's rules, with its callers in the same process.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import math
import random
from dataclasses import dataclass, field
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import trio
from sklearn.datasets import load_digits
from trio.testing import MockClock

import shoal
from benchmarks.cork import Shed, opened
from benchmarks.report import Panel, Report, parser, print_table
from examples.digits.model import Digits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from benchmarks.cork import Call, Handler

MAX_BATCH_SIZE: Final = 128
WAITS_S: Final = (0.0, 0.01, 0.05)
SEED: Final = 20

ADAPTIVE: Final = "adaptive"
BENTOML: Final = "BentoML's rule"
RULES: Final = (*(f"wait {wait_s * 1e3:g} ms" for wait_s in WAITS_S), ADAPTIVE, BENTOML)
HELD_PERCENT: Final = 99.0
HEADS: Final = ("load and target", "rule", "within %", "p50 ms", "p99 ms", "mean batch", "shed %")


@dataclass(frozen=True)
class Load:
    """One scenario: arrivals, run times of the handler, and the latency target.

    Attributes:
        rate: Requests a second, as a function of the part of the duration; None for loops.
        most: The highest rate.
        loops: The number of callers that call again at most `think_s` after each answer.
        pace: A factor on the run times, as a function of the part of the duration.
        noise: The standard deviation of the logarithm of its run times.
    """

    name: str
    target_s: float
    rate: Callable[[float], float] | None = None
    most: float = 0
    loops: int = 0
    think_s: float = 0.002
    fixed_s: float = 0.02
    per_item_s: float = 0.0005
    pace: Callable[[float], float] = lambda part: 1.0
    noise: float = 0.05


def _slower_a_while(part: float) -> float:
    return 1.9 if 1 < part * 3 < 2 else 1.0


LOADS: Final = (
    Load("100/s", 0.07, lambda part: 100, 100),
    Load("500/s", 0.07, lambda part: 500, 500),
    Load("1,000/s", 0.1, lambda part: 1000, 1000),
    Load("bursts of 75", 0.1, lambda part: 1500 if part * 20 % 1 < 0.05 else 20, 1500),
    Load("0 to 800/s", 0.1, lambda part: 400 * (1 - math.cos(part * 4 * math.pi)), 800),
    Load("200/s, slower a while", 0.1, lambda part: 200, 200, pace=_slower_a_while),
    Load("1 caller in a loop", 0.03, loops=1),
    Load("4 callers in loops", 0.04, loops=4),
    Load("8 callers in loops", 0.04, loops=8),
    Load("16 callers in loops", 0.05, loops=16),
    Load("32 callers in loops", 0.1, loops=32),
)


@dataclass
class Seen:
    """The results of one rule under one load."""

    latencies_s: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    shed: int = 0

    async def ask(self, call: Call, item: Any) -> Any:
        """Makes a call, and returns its result; None if it was shed."""
        arrived_at = trio.current_time()
        try:
            result = await call(item)
        except Shed:
            self.shed += 1
            return None
        self.latencies_s.append(trio.current_time() - arrived_at)
        return result

    def percentile_ms(self, percent: float) -> float:
        """Returns a percentile of the latencies of answered requests."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e3

    def row(self, load: Load, rule: str) -> dict[str, Any]:
        """Returns the results in the form that is saved."""
        requests = len(self.latencies_s) + self.shed
        in_time = sum(latency_s <= load.target_s for latency_s in self.latencies_s)
        return {
            "load": load.name,
            "rule": rule,
            "target_ms": load.target_s * 1e3,
            "requests": requests,
            "p50_ms": self.percentile_ms(50),
            "p99_ms": self.percentile_ms(99),
            "within_percent": in_time / requests * 100,
            "shed_percent": self.shed / requests * 100,
            "mean_batch": mean(self.batches),
        }


def options_of(rule: str, target_s: float) -> dict[str, Any]:
    """Returns the options of one of Shoal's rules."""
    if rule == ADAPTIVE:
        return {"adaptive": shoal.LatencyTarget(p99_s=target_s)}
    return {"batch_wait_timeout_s": WAITS_S[RULES.index(rule)]}


def under(rule: str, load: Load, handler: Handler) -> AbstractAsyncContextManager[Call]:
    """Opens a batcher of a handler with the given rule."""
    if rule == BENTOML:
        return opened(handler, MAX_BATCH_SIZE, load.target_s)
    return shoal.Batcher(handler, max_batch_size=MAX_BATCH_SIZE, **options_of(rule, load.target_s))


async def drive(rule: str, load: Load, duration_s: float) -> Seen:
    """Runs a load with a rule, until every request has been answered or shed."""
    seen = Seen()
    coming, running = random.Random(SEED), random.Random(SEED + 1)
    began = trio.current_time()

    async def handler(items: list[int]) -> list[int]:
        seen.batches.append(len(items))
        run_s = load.fixed_s + load.per_item_s * len(items)
        part = (trio.current_time() - began) / duration_s
        await trio.sleep(run_s * load.pace(part) * running.lognormvariate(0, load.noise))
        return items

    async with under(rule, load, handler) as call:
        await _callers(load, lambda: seen.ask(call, 0), coming, began + duration_s)
    assert sum(seen.batches) == len(seen.latencies_s)
    return seen


async def _callers(
    load: Load, ask: Callable[[], Awaitable[Any]], chance: random.Random, until: float
) -> None:
    """Makes the requests of a load until a time, and waits until all have ended."""

    async def loop(think: random.Random) -> None:
        await trio.sleep(think.uniform(0, load.fixed_s))
        while trio.current_time() < until:
            await ask()
            await trio.sleep(think.uniform(0, load.think_s))

    async with trio.open_nursery() as nursery:
        for _ in range(load.loops):
            nursery.start_soon(loop, random.Random(chance.random()))
        if load.rate is not None:
            began = at = trio.current_time()
            while (at := at + chance.expovariate(load.most)) < until:
                await trio.sleep_until(at)
                # Thinning a process with the highest rate gives one with a changing rate.
                if chance.random() * load.most < load.rate((at - began) / (until - began)):
                    nursery.start_soon(ask)


async def measure_digits(digits: Digits) -> shoal.statistics.LatencyModelSnapshot:
    """Measures the run times of the digits example, in real time."""
    images = load_digits().images.tolist()
    batcher = shoal.Batcher(digits, max_batch_size=MAX_BATCH_SIZE)
    async with batcher as call:
        for _ in range(12):
            for size in (1, 2, 4, 8, 16, 32, 64, 128):
                await call.map(images[:size])
            learned = batcher.statistics().latency_model  # reading it empties its buffer
    assert learned is not None
    return learned


async def run_digits(digits: Digits, rule: str, load: Load, duration_s: float) -> Seen:
    """Runs a load on the digits example, in real time."""
    seen = Seen()
    images = load_digits().images.tolist()
    chance = random.Random(SEED)
    options = options_of(rule, load.target_s)
    batches: dict[int, int] = {}
    async with shoal.Batcher(digits, max_batch_size=MAX_BATCH_SIZE, **options) as call:

        async def ask() -> None:
            batch = (await seen.ask(call, chance.choice(images)))["batch"]
            batches[batch["id"]] = batch["size"]

        await _callers(load, ask, chance, trio.current_time() + duration_s)
    seen.batches = list(batches.values())
    return seen


def digits_loads(learned: shoal.statistics.LatencyModelSnapshot) -> tuple[Load, ...]:
    """Returns loads for a handler with the run times of the digits example."""
    times: dict[str, Any] = {
        "fixed_s": learned.b_s,
        "per_item_s": learned.a_s,
        "noise": math.log(learned.spread) / 2.33,
    }
    one_s = learned.b_s + learned.a_s
    return (
        Load("digits, at random", 6 * one_s, lambda part: 3 / one_s, 3 / one_s, **times),
        Load("digits, 16 callers in loops", 5 * one_s, loops=16, **times),
    )


def _as_texts(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['load']}, {row['target_ms']:.0f} ms",
        row["rule"],
        f"{row['within_percent']:.2f}" + ("" if row["within_percent"] >= HELD_PERCENT else " !"),
        f"{row['p50_ms']:,.1f}",
        f"{row['p99_ms']:,.1f}",
        f"{row['mean_batch']:.1f}",
        f"{row['shed_percent']:.2f}",
    ]


def _sentence(rows: list[dict[str, Any]]) -> str:
    """Returns a sentence with the number of targets that each rule met, in virtual time."""
    held = [row["rule"] for row in rows if row["within_percent"] >= HELD_PERCENT]
    counts = ", ".join(f"{rule} {held.count(rule)}" for rule in RULES)
    return (
        f"number of the {len(rows) // len(RULES)} targets that each rule met for {HELD_PERCENT:g}% "
        f"of the requests: {counts}."
    )


def main() -> None:
    """Runs the benchmark."""
    made = parser("Which rules meet a latency target, under the same loads.", "adaptive")
    arguments = made.parse_args()
    report = Report("adaptive", arguments.json, ("shoal", "anyio", "trio", "scikit-learn"))
    report.print_environment()
    duration_s, real_s = (5.0, 1.0) if arguments.quick else (20.0, 5.0)
    digits = Digits()
    learned = trio.run(measure_digits, digits)
    print(
        f"The digits take {learned.b_s * 1e3:.2f} ms and {learned.a_s * 1e3:.3f} ms an image, 99% "
        f"of them within {learned.spread:.2f} times that.\n\n{duration_s:g} s of load in virtual "
        f"time, seed {SEED}, max_batch_size={MAX_BATCH_SIZE}; ! marks a target that was missed\n"
    )
    of_digits = digits_loads(learned)
    virtual: list[dict[str, Any]] = []
    for load, rule in product((*LOADS, *of_digits), RULES):
        seen = trio.run(drive, rule, load, duration_s, clock=MockClock(autojump_threshold=0))
        virtual.append(seen.row(load, rule))
    print_table(HEADS, [_as_texts(row) for row in virtual])
    print(f"\nThe digits example in real time, {real_s:g} s each\n")
    real = [
        trio.run(run_digits, digits, rule, load, real_s).row(load, rule) | {"time": "real"}
        for load, rule in product(of_digits, RULES[:-1])
    ]
    print_table(HEADS, [_as_texts(row) for row in real])
    report.rows = virtual + real
    series = {
        rule: [row["within_percent"] for row in virtual if row["rule"] == rule] for rule in RULES
    }
    groups = [load.name.replace(" ", "\n") for load in (*LOADS, *of_digits)]
    panel = Panel("Answered within the target", "% of requests", groups, series, HELD_PERCENT)
    report.finish(_sentence(virtual), [panel])


if __name__ == "__main__":
    main()
