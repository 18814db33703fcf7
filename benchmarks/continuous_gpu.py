"""Continuous batches and rivals where a step costs the same for any number of texts.

Callers in loops request their next text when the last one is complete; or texts arrive at random (a
Poisson process), at a part of the rate that full closed batches can just serve. Each way gets the
same texts, in the same order. Throughput and occupancy are those until the last text is requested,
so that the end of the run, when places stay empty in each way, does not count. Latencies are those
of all texts, each read to its end.

In virtual time the figures are exact, and the same on every machine. A run in real time shows what
the batcher itself costs; its model may be a decoder on a real GPU.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchmarks.continuous_rivals import (
    BARE,
    BY_LENGTH,
    CLOSED,
    CONTINUOUS,
    HELD,
    NearestLengths,
    opened,
)
from benchmarks.gpu_model import GpuModel, Lengths, equal, log_uniform, mostly_short, uniform
from benchmarks.http_load import percentile_ms
from shoal.testing import run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.continuous_rivals import Call
    from benchmarks.gpu_model import StepModel

CAPACITY: Final = 16
STEP_S: Final = 0.02
SEED: Final = 20

WAYS: Final = (HELD, CLOSED, BY_LENGTH, BARE, CONTINUOUS)
REAL_WAYS: Final = (CLOSED, BARE, CONTINUOUS)
# Batches by length are measured with each of these numbers of buckets and with the nearest lengths.
BUCKETS: Final = (2, 4)

UNIFORM: Final = uniform(16, 256)
LOG_UNIFORM: Final = log_uniform(1, 512)
MOSTLY_SHORT: Final = mostly_short()
EQUAL: Final = equal(128)
# Of the run in real time: closed batches of the others would take too long.
REAL_LENGTHS: Final = log_uniform(16, 256)


@dataclass(frozen=True)
class Load:
    """A load: callers in loops, or texts that arrive at random.

    Attributes:
        callers: The number of callers in loops, in capacities of the model.
        rate: Or the rate of texts, as a part of what full closed batches can serve.
        prefill_s: How much longer a step of the model takes if texts join.
    """

    callers: int = 0
    rate: float = 0.0
    prefill_s: float = 0.0

    def __str__(self) -> str:
        name = f"{self.callers * CAPACITY} callers" if self.callers else f"load {self.rate:g}"
        return f"{name}, prefill" if self.prefill_s else name


# Twice as many callers as places: the load of the targets.
TWICE: Final = Load(callers=2)
LOADS: Final = (
    Load(callers=1),
    TWICE,
    Load(callers=4),
    Load(callers=2, prefill_s=STEP_S),
    Load(rate=0.5),
    Load(rate=0.8),
)
QUICK_LOADS: Final = (TWICE, Load(rate=0.5))


@dataclass
class Seen:
    """The measurements of one way under one load.

    Attributes:
        steps: The steps of the model until the last text was requested.
        tokens: The tokens that it wrote until then.
        took_s: The time until then.
        cpu_s: The CPU time until then.
        first_token_s: The time from each request to its first token.
        whole_text_s: The time from each request to its last token.
        by_length: What made batches by length: the nearest lengths, or a number of buckets.
    """

    steps: int = 0
    tokens: int = 0
    took_s: float = 0.0
    cpu_s: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    whole_text_s: list[float] = field(default_factory=list)
    by_length: str | None = None

    @property
    def tokens_a_second(self) -> float:
        """The throughput."""
        return self.tokens / self.took_s

    @property
    def occupancy(self) -> float:
        """The mean part of the model's places that were in use in a step."""
        return self.tokens / self.steps / CAPACITY


class _Run:
    """One run of a load: requests the texts, and measures."""

    def __init__(self, call: Call, model: StepModel, texts: Sequence[int]) -> None:
        self._call = call
        self._model = model
        self._texts = iter(texts)
        self._left = len(texts)
        self.seen = Seen()
        self.all_requested = anyio.Event()
        self._began_at, self._cpu_before = anyio.current_time(), time.process_time()

    async def _read(self, length: int) -> None:
        """Requests one text and reads it."""
        seen, asked_at = self.seen, anyio.current_time()
        self._left -= 1
        if not self._left:
            seen.steps, seen.tokens = self._model.steps, self._model.tokens
            seen.took_s = asked_at - self._began_at
            seen.cpu_s = time.process_time() - self._cpu_before
            self.all_requested.set()
        got = 0
        async with self._call(length) as stream:
            async for tokens in stream:
                if not got:
                    seen.first_token_s.append(anyio.current_time() - asked_at)
                got += tokens
        assert got == length
        seen.whole_text_s.append(anyio.current_time() - asked_at)

    async def loop(self) -> None:
        """Requests texts one after another."""
        for length in self._texts:
            await self._read(length)

    async def arrive(self, texts_a_second: float) -> None:
        """Requests each text at a random time."""
        chance = random.Random(SEED)
        at = self._began_at
        async with anyio.create_task_group() as tasks:
            for length in self._texts:
                at += chance.expovariate(texts_a_second)
                await anyio.sleep_until(at)
                tasks.start_soon(self._read, length)


async def drive(
    way: str,
    lengths: Lengths,
    texts: Sequence[int],
    load: Load,
    *,
    model: StepModel | None = None,
    step_s: float = STEP_S,
    buckets: int | None = None,
    to_the_end: bool = True,
) -> Seen:
    """Runs one way under one load.

    Args:
        way: The way.
        lengths: The distribution of the lengths.
        texts: The length of each text.
        load: The load.
        model: The model; None for the fake one.
        step_s: How long a step of the fake model takes.
        buckets: The number of buckets of batches by length; None for those of nearest lengths.
        to_the_end: Whether to read all texts, rather than to stop when the last is requested.
    """
    model = model or GpuModel(CAPACITY, step_s, load.prefill_s)
    options: dict[str, Any] = {}
    if buckets is not None:
        options["bucket_by"] = partial(lengths.bucket_of, buckets=buckets)
    elif way == BY_LENGTH:
        options["policy"] = NearestLengths
    async with opened(way, model, **options) as call, anyio.create_task_group() as tasks:
        run = _Run(call, model, texts)
        if load.callers:
            for _ in range(load.callers * CAPACITY):
                tasks.start_soon(run.loop)
        else:
            full_batches = CAPACITY / (lengths.longest_of(CAPACITY) * step_s)
            tasks.start_soon(run.arrive, full_batches * load.rate)
        if not to_the_end:
            await run.all_requested.wait()
            tasks.cancel_scope.cancel()
    if way == BY_LENGTH:
        run.seen.by_length = "nearest" if buckets is None else f"{buckets} buckets"
    return run.seen


def virtually(way: str, lengths: Lengths, texts: Sequence[int], load: Load) -> Seen:
    """Runs one way under one load in virtual time; of batches by length, the best kind.

    That is the kind with the shortest mean time of a text, which for callers in loops is that with
    the most texts a second.
    """
    choices = (None, *BUCKETS) if way == BY_LENGTH else (None,)
    runs = [
        run_virtually(partial(drive, way, lengths, texts, load, buckets=buckets))
        for buckets in choices
    ]
    return min(runs, key=lambda seen: mean(seen.whole_text_s))


def steps_of_closed(texts: Sequence[int]) -> int:
    """Returns the steps of full closed batches of texts, in their order."""
    return sum(max(texts[at : at + CAPACITY]) for at in range(0, len(texts), CAPACITY))


def in_virtual_time(count: int, loads: Sequence[Load]) -> list[dict[str, Any]]:
    """Returns a row for each distribution, load and way; gains are relative to closed batches."""
    rows = []
    cases = [(of, load) for of in (UNIFORM, LOG_UNIFORM, MOSTLY_SHORT) for load in loads]
    for lengths, load in [*cases, (EQUAL, TWICE)]:
        texts = lengths.draw(random.Random(SEED), count)
        seen_of = {way: virtually(way, lengths, texts, load) for way in WAYS}
        closed = seen_of[CLOSED]
        for way, seen in seen_of.items():
            row = {"part": "virtual", "lengths": lengths.name, "load": str(load), "way": way}
            if seen.by_length:
                row["kind"] = seen.by_length
            rows.append(row | _figures(seen))
            if load.callers:
                rows[-1]["gain"] = seen.tokens_a_second / closed.tokens_a_second
    return rows


def _figures(seen: Seen) -> dict[str, Any]:
    return {
        "tokens_a_second": seen.tokens_a_second,
        "steps": seen.steps,
        "occupancy_percent": seen.occupancy * 100,
        "first_p50_s": percentile_ms(seen.first_token_s, 50) / 1e3,
        "first_p99_s": percentile_ms(seen.first_token_s, 99) / 1e3,
        "whole_p50_s": percentile_ms(seen.whole_text_s, 50) / 1e3,
        "whole_p99_s": percentile_ms(seen.whole_text_s, 99) / 1e3,
    }


def bounds(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Returns a row for each distribution: bounds of the gain, and the gains beside them.

    *bound* is that of the distribution. *drawn* is that of the texts that were drawn: the gain if
    no place were ever empty, by how full the closed batches were.
    *sorted* is the gain of closed batches if all texts are there at once, in the order of their
    lengths.
    """
    made = []
    for lengths in (UNIFORM, LOG_UNIFORM, MOSTLY_SHORT, EQUAL):
        here = [row for row in rows if (row["lengths"], row["load"]) == (lengths.name, str(TWICE))]
        gains = {row["way"]: row["gain"] for row in here}
        closed = next(row for row in here if row["way"] == CLOSED)
        texts = lengths.draw(random.Random(SEED), count)
        made.append(
            {
                "part": "bound",
                "lengths": lengths.name,
                "bound": lengths.gain_at_most(CAPACITY),
                "drawn": 100 / closed["occupancy_percent"],
                "continuous": gains[CONTINUOUS],
                "bare": gains[BARE],
                "by_length": gains[BY_LENGTH],
                "sorted": steps_of_closed(texts) / steps_of_closed(sorted(texts)),
            }
        )
    return made


def in_real_time(
    new_model: Callable[[], StepModel], count: int, rounds: int
) -> list[dict[str, Any]]:
    """Returns a row for each way: medians of the rounds, and ratios to the bare loop's."""
    texts = REAL_LENGTHS.draw(random.Random(SEED), count)
    seen_of: dict[str, list[Seen]] = {way: [] for way in REAL_WAYS}
    for _ in range(rounds):
        for way in REAL_WAYS:
            run = partial(
                drive, way, REAL_LENGTHS, texts, TWICE, model=new_model(), to_the_end=False
            )
            seen_of[way].append(anyio.run(run, backend="trio"))
    rows = []
    for way, seen in seen_of.items():
        beside = list(zip(seen, seen_of[CLOSED], seen_of[BARE], strict=True))
        rows.append(
            {
                "way": way,
                "tokens_a_second": median(one.tokens_a_second for one in seen),
                "gain": median(one.tokens_a_second / it.tokens_a_second for one, it, _ in beside),
                "of_bare": median(
                    one.tokens_a_second / it.tokens_a_second for one, _, it in beside
                ),
                "first_p50_ms": median(percentile_ms(one.first_token_s, 50) for one in seen),
                "real_step_ms": median(one.took_s / one.steps * 1e3 for one in seen),
                "occupancy_percent": median(one.occupancy * 100 for one in seen),
                "cpu_us": median(one.cpu_s / one.tokens * 1e6 for one in seen),
            }
        )
    return rows
