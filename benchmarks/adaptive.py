"""Whether a latency target is held: by the adaptive rule, by fixed waits, and by BentoML's rule.

The same arrivals, handlers and targets for each rule. A handler takes a time for the batch and a
time for each item, with some noise; requests come at random, in bursts, as days go by, or from
callers in loops; and one handler becomes slower for a while. A request counts as within the target
if its result came in time: one that was shed did not.

Time is virtual: trio's clock jumps to the next deadline whenever every task waits. So the figures
are those of the rule alone, and the same on every machine. The start counts as well: the adaptive
rule begins knowing nothing and BentoML's with its training.

The last load has the run times of the digits example, which are measured first, in real time. Then
the digits run in real time under Shoal's rules, with their callers in the same process.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # as a script it would find http.py here before the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import math
import random
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from sklearn.datasets import load_digits
from trio.testing import MockClock

import shoal
from benchmarks.report import Panel, Report, parser, print_table
from examples.digits.model import Digits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Handler = Callable[[list[Any]], Awaitable[list[Any]]]
    Call = Callable[[Any], Awaitable[Any]]

MAX_BATCH_SIZE: Final = 128
WAITS_S: Final = (0.0, 0.01, 0.05)
SEED: Final = 20

ADAPTIVE: Final = "adaptive"
BENTOML: Final = "BentoML's rule"
RULES: Final = (*(f"wait {wait_s * 1e3:g} ms" for wait_s in WAITS_S), ADAPTIVE, BENTOML)


@dataclass(frozen=True)
class Load:
    """One scenario: when requests come, how long the handler takes, and what is to be held.

    Attributes:
        name: What to call it.
        target_s: Within what 99% of the requests should be answered.
        rate: How many requests come a second at which part of the duration; None for loops.
        most: The highest rate.
        loops: How many callers call again as soon as they are answered.
        think_s: How long it takes them at most.
        fixed_s, per_item_s: How long the handler takes for a batch, and for each item.
        pace: How many times as long it takes at which part of the duration.
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


LOADS: Final = (
    Load("100/s", 0.07, lambda part: 100, 100),
    Load("500/s", 0.07, lambda part: 500, 500),
    Load("900/s", 0.1, lambda part: 900, 900),
    Load("bursts of 75", 0.1, lambda part: 1500 if part * 20 % 1 < 0.05 else 20, 1500),
    Load("0 to 800/s", 0.1, lambda part: 400 * (1 - math.cos(part * 4 * math.pi)), 800),
    Load(
        "200/s, slower",
        0.12,
        lambda part: 200,
        200,
        pace=lambda part: 1.9 if 1 < part * 3 < 2 else 1.0,
    ),
    Load("1 in a loop", 0.03, loops=1),
    Load("8 in loops", 0.04, loops=8),
    Load("32 in loops", 0.1, loops=32),
)


@dataclass
class Seen:
    """What one rule did with one load."""

    latencies_s: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    shed: int = 0

    def percentile_ms(self, percent: float) -> float:
        """Returns the latency that so many percent of the answered requests stayed within."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e3

    def row(self, load: Load, rule: str) -> dict[str, Any]:
        """Returns the results as they are saved."""
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


class Shed(Exception):
    """BentoML's rule gave a request up."""


@dataclass
class _Waiting:
    item: Any
    since: float
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    is_shed: bool = False


class Cork:
    """BentoML's rule, for one batch at a time.

    Run times are fitted by least squares over the last 50 batches, every 5 s at most. A tick of
    1 ms decides: as soon as the first in line would be late by the fit, it is shed; and a free
    handler waits on while the summed wait of all, had one more come, is below 0.95 times what the
    first of a batch has waited on average.
    """

    _TICK_S = 0.001

    def __init__(self, handler: Handler, max_batch_size: int, max_latency_s: float) -> None:
        self._handler = handler
        self._size = max_batch_size
        self._max_s = max_latency_s
        self._line: deque[_Waiting] = deque()
        self._came = trio.Event()
        self._is_busy = False
        self._seen: deque[tuple[int, float, float]] = deque(maxlen=50)
        self._count = 0
        self._fitted_at = -math.inf
        self._a, self._b = min(2.0, max_latency_s * 2 / 30), min(1.0, max_latency_s / 30)
        self._wait_s = 0.0

    async def call(self, item: Any) -> Any:
        waiting = _Waiting(item, trio.current_time())
        self._line.append(waiting)
        self._came.set()
        await waiting.done.wait()
        if waiting.is_shed:
            raise Shed
        return waiting.result

    async def run(self, nursery: trio.Nursery) -> None:
        for kept, batches, size in ((2, 8, 1), (6, 1, 1), (5, 1, 2), (3, 1, 3)):
            await self._train(nursery, kept, batches, size)
        while True:
            await self._wait_for_one()
            n, now = len(self._line), trio.current_time()
            first_s = now - self._line[0].since
            last_s = now - self._line[-1].since
            if n > 1 and first_s + self._a * n + self._b >= self._max_s:
                self._shed_first()
            elif self._is_busy:
                if n == 1 and first_s >= self._max_s:
                    self._shed_first()
                else:
                    await trio.sleep(self._TICK_S)
            elif n < self._size and n * (last_s + self._TICK_S + self._a) <= self._wait_s * 0.95:
                await trio.sleep(self._TICK_S)
            else:
                self._start(nursery, is_training=False)

    async def _train(self, nursery: trio.Nursery, kept: int, batches: int, size: int) -> None:
        wait_s = min(self._max_s * 0.95, (2 * size + 1) * self._a + self._b)
        done = 0
        while done < batches:
            await self._wait_for_one()
            n, first_s = len(self._line), trio.current_time() - self._line[0].since
            if n > kept - done and first_s >= self._max_s:
                self._shed_first()
            elif self._is_busy or (n < size and size * self._a + self._b + first_s <= wait_s):
                await trio.sleep(self._TICK_S)
            else:
                done += 1
                self._start(nursery, is_training=True)
        self._fit()

    async def _wait_for_one(self) -> None:
        while not self._line:
            self._came = trio.Event()
            await self._came.wait()

    def _shed_first(self) -> None:
        waiting = self._line.popleft()
        waiting.is_shed = True
        waiting.done.set()

    def _start(self, nursery: trio.Nursery, *, is_training: bool) -> None:
        self._is_busy = True
        batch = [self._line.popleft() for _ in range(min(self._size, len(self._line)))]
        nursery.start_soon(self._handle, batch, is_training)

    async def _handle(self, batch: list[_Waiting], is_training: bool) -> None:
        began = trio.current_time()
        results = await self._handler([waiting.item for waiting in batch])
        for waiting, result in zip(batch, results, strict=True):
            waiting.result = result
            waiting.done.set()
        self._is_busy = False
        self._count += 1
        if self._count > 2:
            now = trio.current_time()
            waited_s = 0.0 if is_training else began - batch[0].since
            self._seen.append((len(batch), now - began, waited_s))
            if now - self._fitted_at >= 5:
                self._fitted_at = now
                self._fit()

    def _fit(self) -> None:
        if self._seen:
            sizes = [(size, 1) for size, _, _ in self._seen]
            a, b = np.linalg.lstsq(sizes, [run_s for _, run_s, _ in self._seen], rcond=None)[0]
            self._a, self._b = max(1e-6, float(a)), max(0.0, float(b))
            self._wait_s = mean(waited_s for _, _, waited_s in self._seen)


def options_of(rule: str, target_s: float) -> dict[str, Any]:
    """Returns the options of one of Shoal's rules."""
    if rule == ADAPTIVE:
        return {"adaptive": shoal.LatencyTarget(p99_s=target_s)}
    return {"batch_wait_timeout_s": WAITS_S[RULES.index(rule)]}


@asynccontextmanager
async def under(rule: str, load: Load, handler: Handler) -> AsyncIterator[Call]:
    """Opens a handler whose batches are formed by a rule."""
    if rule == BENTOML:
        cork = Cork(handler, MAX_BATCH_SIZE, load.target_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cork.run, nursery)
            yield cork.call
            nursery.cancel_scope.cancel()
    else:
        options = options_of(rule, load.target_s)
        async with shoal.Batcher(handler, max_batch_size=MAX_BATCH_SIZE, **options) as call:
            yield call


async def drive(rule: str, load: Load, duration_s: float) -> Seen:
    """Puts a rule under a load, and waits until every request has been answered or shed."""
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

        async def ask() -> None:
            arrived_at = trio.current_time()
            try:
                await call(0)
            except Shed:
                seen.shed += 1
            else:
                seen.latencies_s.append(trio.current_time() - arrived_at)

        await _callers(load, ask, coming, began + duration_s)
    assert sum(seen.batches) == len(seen.latencies_s)
    return seen


async def _callers(
    load: Load, ask: Callable[[], Awaitable[None]], chance: random.Random, until: float
) -> None:
    """Lets the requests of a load come until a time, and all of them end."""

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
                # A process with the highest rate, thinned out, is one with a changing rate.
                if chance.random() * load.most < load.rate((at - began) / (until - began)):
                    nursery.start_soon(ask)


async def run_digits(
    digits: Digits, rule: str, load: Load, duration_s: float
) -> tuple[Seen, shoal.LatencyModelSnapshot]:
    """Runs the digits in real time; returns what was seen, and what the batcher has learned."""
    seen = Seen()
    images = load_digits().images.tolist()
    chance = random.Random(SEED)
    options = options_of(rule, load.target_s)
    async with shoal.Batcher(digits, max_batch_size=MAX_BATCH_SIZE, **options) as call:

        async def ask() -> None:
            arrived_at = trio.current_time()
            await call(chance.choice(images))
            seen.latencies_s.append(trio.current_time() - arrived_at)

        await _callers(load, ask, chance, trio.current_time() + duration_s)
        statistics = call.statistics()
    seen.batches = [statistics.finished // statistics.batch_size.total]
    assert statistics.latency_model is not None
    return seen, statistics.latency_model
