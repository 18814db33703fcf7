"""The inputs and results of a simulation: arrivals and run times, outcomes and batches."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from shoal.core.options.option import whole
from shoal.core.request import DispatchReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.core.options.options import BatchOptions


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns a percentile of ascending values, by nearest rank; NaN of none."""
    place = max(0, math.ceil(len(ordered) * percent / 100) - 1)
    return ordered[place] if ordered else math.nan


class Arrival(NamedTuple):
    """One call of a trace.

    Attributes:
        at: When it is made, in seconds from the start of the trace.
        item: What it passes; only used by options that are functions of an item.
        priority: Its priority level, as in ``options(priority=...)``.
        timeout_s: How long it may take, as in ``options(timeout_s=...)``.
        queue_timeout_s: How long it may wait in the queue, as in ``options(queue_timeout_s=...)``.
        shard_key: The key of its replica, as in ``options(shard_key=...)`` of a handle.
        model: The model that it needs, as in ``options(model=...)`` of a handle.
    """

    at: float
    item: Any = None
    priority: int | None = None
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    shard_key: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Callers that call again after each result, in place of a trace.

    Attributes:
        callers: How many there are, at least 1.
        think_s: How long each usually takes from a result to its next call, in seconds: of its own,
            of the network, and of the server that passes its call on.
        duration_s: For how long they call, in seconds.
        jitter: How much that time varies; see `Linear`.
        seed: The seed of the variation.
    """

    callers: int
    think_s: float
    duration_s: float
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        whole("callers", self.callers, least=1)
        if not (0 <= self.think_s < math.inf and 0 < self.duration_s < math.inf):
            raise ValueError(
                "think_s must be at least 0 and duration_s above 0 seconds, both finite, not "
                f"{self.think_s!r} and {self.duration_s!r}"
            )

    def sampler(self) -> Callable[[], float]:
        """Returns a function that returns the next time from a result to a call, in seconds."""
        return partial(Linear(self.think_s, 0, self.jitter, self.seed).sampler(), 1)


@runtime_checkable
class RunTimes(Protocol):
    """A model of varying run times, which is reset for each simulation."""

    def sampler(self) -> Callable[[float], float]:
        """Returns a function from a batch's size to its run time, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear model: a run takes a fixed time for the batch and some for each item.

    Attributes:
        fixed_s: The part that does not depend on the batch, in seconds.
        per_item_s: The part for each item, or for each unit of cost, in seconds.
        jitter: How much run times vary: the standard deviation of their logarithm. With 0.1 two
            thirds of the runs are within a tenth of the usual time.
        seed: The seed of the variation.
    """

    fixed_s: float
    per_item_s: float
    jitter: float = 0.0
    seed: int = 0

    def __call__(self, size: float) -> float:
        """Returns the usual run time for a batch of that size, in seconds."""
        return self.fixed_s + self.per_item_s * size

    def sampler(self) -> Callable[[float], float]:
        """Returns a function from a batch's size to its run time, in seconds."""
        if not self.jitter:
            return self
        draw = random.Random(self.seed).lognormvariate  # noqa: S311 - no secret is drawn
        return lambda size: self(size) * draw(0.0, self.jitter)


class Outcome(StrEnum):
    """How a simulated request ended."""

    FINISHED = "finished"
    """It was answered."""
    REJECTED = "rejected"
    """It was refused on arrival."""
    SHED = "shed"
    """It was removed from the queue to make room for another request."""
    EXPIRED = "expired"
    """It timed out."""
    FAILED = "failed"
    """The handler ran for longer than ``handler_timeout_s``."""


class SimulatedBatch(NamedTuple):
    """One batch of a simulation.

    Attributes:
        dispatched_at: When it was dispatched, in seconds from the start of the trace.
        reason: Why it was dispatched.
        requests: Its requests in order, by their positions in the trace.
        size: The sum of its requests' costs, with padding; their number without a
            ``batch_size_fn``.
        run_s: How long the handler took for it, in seconds.
        replica: The number of the replica that it ran on, from 1.
        is_spilled: Whether its requests prefer another replica, by their shard keys.
    """

    dispatched_at: float
    reason: DispatchReason
    requests: tuple[int, ...]
    size: float
    run_s: float
    replica: int = 1
    is_spilled: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Simulation:
    """The results of a simulation.

    Attributes:
        options: The options.
        arrived_at: When each request of the trace arrived, in seconds.
        latency_s: How long each request took from its arrival to its result, in seconds; NaN if it
            got none.
        outcomes: How each request ended.
        batches: The batches, in order of dispatch.
        duration_s: From the first arrival to the end of the last batch, in seconds.
        replicas: The number of replicas.
        loads: How many times a replica loaded a model.
    """

    options: BatchOptions
    arrived_at: array[float]
    latency_s: array[float]
    outcomes: list[Outcome]
    batches: list[SimulatedBatch]
    duration_s: float
    replicas: int = 1
    loads: int = 0

    def percentile_s(self, percent: float) -> float:
        """Returns a percentile of the latency of the answered requests.

        Returns:
            The latency in seconds; NaN if no request was answered.
        """
        return percentile(sorted(one for one in self.latency_s if one == one), percent)

    def waits_s(self) -> array[float]:
        """Returns each request's time in the queue, in seconds; NaN if it was never dispatched."""
        waits = array("d", [math.nan]) * len(self.arrived_at)
        for batch in self.batches:
            for request in batch.requests:
                waits[request] = batch.dispatched_at - self.arrived_at[request]
        return waits

    @property
    def count(self) -> Mapping[Outcome, int]:
        """The number of requests by outcome."""
        counted = Counter(self.outcomes)
        return {outcome: counted[outcome] for outcome in Outcome}

    @property
    def reasons(self) -> Mapping[DispatchReason, int]:
        """The number of batches by dispatch reason."""
        counted = Counter(batch.reason for batch in self.batches)
        return {reason: counted[reason] for reason in DispatchReason}

    @property
    def mean_batch(self) -> float:
        """The average number of requests per batch; NaN if there was none."""
        taken = sum(len(batch.requests) for batch in self.batches)
        return taken / len(self.batches) if self.batches else math.nan

    @property
    def spilled_share(self) -> float:
        """The part of the dispatched requests that ran on another replica than they prefer."""
        spilled = sum(len(batch.requests) for batch in self.batches if batch.is_spilled)
        taken = sum(len(batch.requests) for batch in self.batches)
        return spilled / taken if taken else 0.0

    @property
    def busy_share(self) -> float:
        """The part of the time that a slot was busy, averaged over all slots; 0 to 1.

        It is 0 if the number of slots is unlimited.
        """
        run_s = sum(batch.run_s for batch in self.batches)
        available_s = self.duration_s * self.options.slots * self.replicas
        return run_s / available_s if available_s else 0.0

    def __repr__(self) -> str:
        return (
            f"<Simulation requests={len(self.outcomes)} batches={len(self.batches)}"
            f" p99={self.percentile_s(99):.6g} s>"
        )
