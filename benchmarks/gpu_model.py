"""A fake model with the cost of an accelerator, and the lengths of the texts that it writes.

One step writes one token of each text in the batch, and takes the same time for any number of texts
up to the capacity. That is the usual shape of decoding on a GPU: a step reads all weights of the
model, whatever the number of texts, and that reading is what takes the time. A text that joins must
be read first (*prefill*). Here that makes a step longer by a fixed time if any text joins in it. So
a closed batch pays for one prefill, however many texts it has, and a continuous batch pays in each
step that a text joins, which favours the closed batch.

The time of a step is a sleep on the event loop. In virtual time it is exact. In real time it leaves
the processor to the batcher, as a GPU does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping


class StepModel(Protocol):
    """A model that works in steps and counts them: the fake one, or a decoder on a real GPU."""

    steps: int
    tokens: int

    @property
    def capacity(self) -> int:
        """How many texts a step can take."""
        ...

    async def step(self, texts: int, joining: int = 0) -> None:
        """Writes one token of each of some texts, of which some join."""


@dataclass
class GpuModel:
    """The fake model, which counts what it does.

    Attributes:
        capacity: How many texts a step can take.
        step_s: How long a step takes.
        prefill_s: How much longer it takes if texts join.
        steps: The number of steps so far.
        tokens: The number of tokens written so far.
    """

    capacity: int
    step_s: float
    prefill_s: float = 0.0
    steps: int = 0
    tokens: int = 0

    async def step(self, texts: int, joining: int = 0) -> None:
        """Writes one token of each of some texts, of which some join."""
        assert 0 < texts <= self.capacity
        assert joining <= texts
        await anyio.sleep(self.step_s + (self.prefill_s if joining else 0))
        self.steps += 1
        self.tokens += texts


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths of texts, in tokens.

    Attributes:
        name: Its name in tables.
        weights: How probable each length is, relative to the others.
    """

    name: str
    weights: Mapping[int, float]

    def draw(self, chance: random.Random, count: int) -> list[int]:
        """Draws lengths at random."""
        return chance.choices(list(self.weights), list(self.weights.values()), k=count)

    @cached_property
    def _shares(self) -> list[tuple[int, float]]:
        """The lengths in order, each with the probability that a text is at most as long."""
        ordered = sorted(self.weights)
        total = sum(self.weights.values())
        sums = accumulate(self.weights[length] for length in ordered)
        return [(length, share / total) for length, share in zip(ordered, sums, strict=True)]

    def longest_of(self, count: int) -> float:
        """Returns the mean of the longest of some texts: the steps of a closed batch of them."""
        before, mean = 0.0, 0.0
        for length, share in self._shares:
            mean += length * (share**count - before**count)
            before = share
        return mean

    def gain_at_most(self, capacity: int) -> float:
        """Returns how many times fewer steps full continuous batches take than full closed ones.

        This is the bound of the gain: the steps that a closed batch takes, by those that its texts
        would take if no place were ever empty.
        """
        return self.longest_of(capacity) / self.longest_of(1)

    def bucket_of(self, length: int, buckets: int) -> int:
        """Returns a text's bucket, where each bucket gets about the same number of texts."""
        share = next(share for of, share in self._shares if of >= length)
        return min(buckets - 1, int(share * buckets))


def uniform(shortest: int, longest: int) -> Lengths:
    """All lengths are equally probable."""
    weights = dict.fromkeys(range(shortest, longest + 1), 1.0)
    return Lengths(f"uniform {shortest} to {longest}", weights)


def log_uniform(shortest: int, longest: int) -> Lengths:
    """As many texts have lengths from 16 to 32 as from 128 to 256."""
    weights = {length: math.log1p(1 / length) for length in range(shortest, longest + 1)}
    return Lengths(f"log-uniform {shortest} to {longest}", weights)


def mostly_short() -> Lengths:
    """Nine of ten texts have 16 to 64 tokens, and one has 256 to 512."""
    weights = dict.fromkeys(range(16, 65), 0.9 / 49) | dict.fromkeys(range(256, 513), 0.1 / 257)
    return Lengths("90% 16 to 64, 10% 256 to 512", weights)


def equal(length: int) -> Lengths:
    """All texts have the same length."""
    return Lengths(f"all {length}", {length: 1.0})
