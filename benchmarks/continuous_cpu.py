"""Continuous batches of the demo's language model on a CPU, which writes up to 8 texts at once.

The same model, with the same cache of keys and values, continues the same prompts in three ways.
The prompts have mixed lengths, and so have the texts: 16 to 256 characters each, drawn once for all
runs (the model can't end a text by itself).

* *continuous*: a prompt joins as soon as one of 8 places is free (`ContinuousTextGenerator`).
* *closed*: 8 prompts start together and run until all are done; one that is done costs no more
  work, but its place stays empty (`TextGenerator`).
* *closed, held*: the same, but each step does the work of 8 until the last is done, as for a model
  that is compiled for one shape.

There are two loads. *Saturated*: 32 readers, each of which requests its next text when the last one
is complete. *Half*: readers arrive at random, at half the rate that closed batches can just serve.

A step has a cost for each text in it, and a fixed cost. Continuous batches save only the fixed
cost, by taking fewer steps. So the table also shows the texts per step: their ratio is the gain for
a model whose steps take as long for one text as for eight.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import shoal
from benchmarks.http_load import percentile_ms
from benchmarks.report import Panel, verdict
from examples.language_model.continuous import TEXTS_AT_ONCE, ContinuousTextGenerator
from examples.language_model.generate import TextGenerator, generate
from examples.language_model.model import BOUNDARY, CharTransformer
from examples.language_model.writing import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from examples.language_model.generate import Entry
    from examples.language_model.layers import Array

READERS: Final = 32
SHORTEST, LONGEST = 16, 256
TARGET: Final = 2.0
SEED: Final = 20

SATURATED: Final = "saturated"
HALF: Final = "half"

HELD: Final = "closed, held"
CLOSED: Final = "closed"
CONTINUOUS: Final = "continuous"
WAYS: Final = (HELD, CLOSED, CONTINUOUS)

# How lengths are drawn. "by ratio" draws as many from 16 to 32 as from 128 to 256.
MIXES: Final[dict[str, Callable[[random.Random], int]]] = {
    "evenly": lambda chance: chance.randint(SHORTEST, LONGEST),
    "by ratio": lambda chance: round(SHORTEST * (LONGEST / SHORTEST) ** chance.random()),
}


class Endless(CharTransformer):
    """The model, changed to never end a text, and to count its steps."""

    steps = 0

    def scores(self, hidden: Array) -> Array:
        """Returns the scores, with minus infinity for the token that ends a text."""
        self.steps += 1
        scores = super().scores(hidden)
        scores[:, BOUNDARY] = -np.inf
        return scores


class HeldTextGenerator:
    """A handler of closed batches that does the work of all prompts until the last is done."""

    def __init__(self, model: CharTransformer) -> None:
        self._model = model

    def __call__(self, prompts: list[Prompt]) -> Iterator[list[Entry]]:
        """Streams one character for each prompt in each step."""
        longest = max(prompt.max_tokens for prompt in prompts)
        held = [prompt.model_copy(update={"max_tokens": longest}) for prompt in prompts]
        for nth, entries in enumerate(generate(self._model, held)):
            yield [
                entry if nth < prompt.max_tokens else shoal.END
                for entry, prompt in zip(entries, prompts, strict=True)
            ]


def batcher(way: str, model: CharTransformer) -> Any:
    """Makes the batcher of one way."""
    make: Any = shoal.Batcher
    if way == CONTINUOUS:
        handler: Any = ContinuousTextGenerator(model)
        return make(handler, fill="continuous", streams=True, max_batch_size=TEXTS_AT_ONCE)
    handler = TextGenerator(model) if way == CLOSED else HeldTextGenerator(model)
    return make(handler, max_batch_size=TEXTS_AT_ONCE)


def prompts(mix: str, count: int) -> list[Prompt]:
    """Draws the prompts, always the same ones: passages of this file's docstring."""
    chance = random.Random(SEED)
    starts = [chance.randrange(len(__doc__) - 200) for _ in range(count)]
    texts = [__doc__[start : start + chance.randint(0, 200)] for start in starts]
    return [
        Prompt(text=text, max_tokens=MIXES[mix](chance), seed=seed)
        for seed, text in enumerate(texts)
    ]


@dataclass
class Seen:
    """The measurements of one way."""

    tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    took_s: float = 0.0
    cpu_s: float = 0.0
    texts_a_step: float = 0.0

    @property
    def tokens_a_second(self) -> float:
        """The throughput."""
        return self.tokens / self.took_s


async def read(call: Any, prompt: Prompt, seen: Seen) -> None:
    """Requests one text and reads it."""
    began = time.perf_counter()
    got = 0
    async with call(prompt) as stream:
        async for _ in stream:
            if not got:
                seen.first_token_s.append(time.perf_counter() - began)
            got += 1
    assert got == prompt.max_tokens
    seen.tokens += got


async def saturate(call: Any, asked: list[Prompt], seen: Seen) -> None:
    """Reads all texts with a fixed number of readers."""
    remaining = iter(asked)

    async def reader() -> None:
        for prompt in remaining:
            await read(call, prompt, seen)

    async with anyio.create_task_group() as tasks:
        for _ in range(READERS):
            tasks.start_soon(reader)


async def trickle(call: Any, asked: list[Prompt], seen: Seen, texts_a_second: float) -> None:
    """Reads each text with its own reader, which arrives at a random time."""
    chance = random.Random(SEED)
    at = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for prompt in asked:
            at += chance.expovariate(texts_a_second)
            await anyio.sleep_until(at)
            tasks.start_soon(read, call, prompt, seen)


def measure(
    way: str, model: Endless, asked: list[Prompt], texts_a_second: float | None = None
) -> Seen:
    """Measures one way: under saturating load, or with readers at the given rate."""
    seen = Seen()

    async def run() -> None:
        async with batcher(way, model) as call:
            model.steps = 0
            began, cpu = time.perf_counter(), time.process_time()
            if texts_a_second is None:
                await saturate(call, asked, seen)
            else:
                await trickle(call, asked, seen, texts_a_second)
            seen.took_s, seen.cpu_s = time.perf_counter() - began, time.process_time() - cpu

    anyio.run(run, backend="trio")
    seen.texts_a_step = seen.tokens / model.steps
    return seen


# The measurements of each load, mix and way, by round.
Rounds = dict[tuple[str, str, str], list[Seen]]


def rounds_of(count: int, texts: int) -> Rounds:
    """Measures all ways under all loads, in turn."""
    model = Endless.load()
    for way in WAYS:
        measure(way, model, prompts("evenly", READERS))  # warms up
    rounds: Rounds = {}
    for nth in range(count):
        for mix in MIXES:
            asked = prompts(mix, texts)
            seen = {(SATURATED, mix, way): measure(way, model, asked) for way in WAYS}
            rate = texts / seen[SATURATED, mix, CLOSED].took_s / 2
            for way in (CLOSED, CONTINUOUS):
                seen[HALF, mix, way] = measure(way, model, asked, rate)
            for case, of_case in seen.items():
                rounds.setdefault(case, []).append(of_case)
        print(f"round {nth + 1} of {count}", file=sys.stderr)
    return rounds


def medians(rounds: Rounds) -> list[dict[str, Any]]:
    """Returns a row for each load, mix and way; ratios are to the closed batches of the round."""
    rows = []
    for (load, mix, way), seen in rounds.items():
        pairs = list(zip(seen, rounds[load, mix, CLOSED], strict=True))
        row: dict[str, Any] = {"part": "cpu", "load": load, "lengths": mix, "way": way}
        row["tokens_a_second"] = median(one.tokens_a_second for one in seen)
        row["first_p50_ms"] = median(percentile_ms(one.first_token_s, 50) for one in seen)
        row["first_p99_ms"] = median(percentile_ms(one.first_token_s, 99) for one in seen)
        row["cpu_us"] = median(one.cpu_s / one.tokens * 1e6 for one in seen)
        row["texts_a_step"] = median(one.texts_a_step for one in seen)
        if load == SATURATED:
            row["ratio"] = median(one.tokens_a_second / it.tokens_a_second for one, it in pairs)
            row["cpu_ratio"] = median(it.cpu_s / one.cpu_s for one, it in pairs)
            row["step_ratio"] = median(one.texts_a_step / it.texts_a_step for one, it in pairs)
            if way == CONTINUOUS:
                row["verdict"] = verdict(row["ratio"], at_least=TARGET)
        rows.append(row)
    return rows


COLUMNS: Final = {
    "tokens_a_second": ("tokens/s", ",.0f"),
    "first_p50_ms": ("first p50 ms", ".0f"),
    "first_p99_ms": ("first p99 ms", ".0f"),
    "cpu_us": ("CPU us a token", ".0f"),
    "texts_a_step": ("texts a step", ".1f"),
    "ratio": ("ratio", ".2f"),
    "cpu_ratio": ("CPU ratio", ".2f"),
    "step_ratio": ("step ratio", ".2f"),
    "verdict": ("target", ""),
}


def rows_of(count: int, texts: int) -> list[dict[str, Any]]:
    """Measures all ways; returns the rows in the order of the table."""
    rows = medians(rounds_of(count, texts))
    return sorted(rows, key=lambda row: (row["load"] == HALF, row["lengths"] != "evenly"))


def named(row: dict[str, Any]) -> str:
    """Returns the name of a row in the table."""
    return f"{row['load']}, lengths drawn {row['lengths']}: {row['way']}"


def sentence(rows: list[dict[str, Any]]) -> str:
    """Returns the result in one sentence."""
    found = {(row["load"], row["lengths"], row["way"]): row for row in rows}
    ours, closed = (found[SATURATED, "evenly", way] for way in (CONTINUOUS, CLOSED))
    ours_at_half, closed_at_half = (found[HALF, "evenly", way] for way in (CONTINUOUS, CLOSED))
    return (
        f"on the CPU, at lengths drawn evenly, continuous batches take "
        f"{1 / ours['step_ratio']:.0%} of the steps of closed ones and write {ours['ratio']:.2f} "
        f"times their tokens a second; the p99 of the first token is "
        f"{ours['first_p99_ms']:.0f} ms to {closed['first_p99_ms']:.0f} ms, and at half the load "
        f"{ours_at_half['first_p99_ms']:.0f} ms to {closed_at_half['first_p99_ms']:.0f} ms"
    )


def panel(rows: list[dict[str, Any]]) -> Panel:
    """Returns a chart of the throughput."""
    here = [row for row in rows if row["load"] == SATURATED]
    series = {way: [row["tokens_a_second"] for row in here if row["way"] == way] for way in WAYS}
    title = "A small model on a CPU, 8 texts at once"
    return Panel(title, "tokens/s", [f"drawn {mix}" for mix in MIXES], series)
