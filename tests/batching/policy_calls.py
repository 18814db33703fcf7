"""What the policy model knows of a call, and of a run of the handler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batching import policy_programs as ops
from batching.program_world import Item

if TYPE_CHECKING:
    from batching.policy_promises import Promises
    from shoal.core.options.options import BatchOptions

BREAKS = ("raise", "short")


class InSlot(Exception):
    """What a handler puts into the slot of one request."""


class Raised(Exception):
    """What a handler raises."""


@dataclass(eq=False)
class Run:
    """One call of the handler."""

    items: list[Call]
    options: BatchOptions
    started_at: float
    broke_at: float = math.inf  # the step at which it raised, or gave the wrong number of slots


class LimitOf:
    """When the next batch may start, as the limits in force and the batches so far say."""

    def __init__(self) -> None:
        self.paused_until = -math.inf
        self._levels = [0.0, 0.0]
        self._spent_at = [-math.inf, -math.inf]

    def opens_at(self, options: BatchOptions) -> float:
        opens_at = self.paused_until
        for level, rate, at in zip(self._levels, rates_of(options), self._spent_at, strict=True):
            if rate is not None and level < 0:
                opens_at = max(opens_at, at - level / rate)
        return opens_at

    def spend(self, options: BatchOptions, cost: float, now: float) -> None:
        burst_s = 0.0 if options.limit is None else options.limit.burst_s
        for place, rate in enumerate(rates_of(options)):
            if rate is None:
                continue
            saved = rate * burst_s
            level = min(saved, self._levels[place] + rate * (now - self._spent_at[place]))
            self._levels[place] = level - (1, cost)[place]
            self._spent_at[place] = now


def rates_of(options: BatchOptions) -> tuple[float | None, float | None]:
    limit = options.limit
    if limit is None:
        return None, None
    return limit.batches_per_s, None if limit.cost_per_min is None else limit.cost_per_min / 60


@dataclass(eq=False, kw_only=True, repr=False)
class Call(Item):
    """One call, or one part of it; it is the item that the handler is given."""

    options: BatchOptions
    shape: ops.Shape
    asks: ops.Asks
    world: Promises
    runs: list[Run] = field(default_factory=list)
    low: float = 0.0
    high: float = 0.0
    whole: Call | None = None
    parts: list[Call] = field(default_factory=list)
    dues: list[float] = field(default_factory=list)  # by when it was made and by when it entered
    task: int = 0  # which calls
    place: int = -1  # in the order in which calls entered the queue
    refusals: int = 0  # how often its run raised `RetryLater`
    went_back: bool = False  # whether it went back into the queue
    is_repeated: bool = False  # a map may call it again, if it was refused
    made_at: int = 0  # which options were in force when it was made

    @property
    def has_run(self) -> bool:
        return bool(self.runs)

    def steps_of(self, kind: str) -> list[int]:
        return [step for step, slot in enumerate(self.script) if slot == kind]

    @property
    def surely_fits(self) -> bool:
        """Whether no function of one item can refuse it."""
        shape = self.shape
        if shape.cost is None or shape.key is None or shape.split != "ok":
            return False
        return shape.cost <= self.options.batch_limit.cost

    @property
    def is_late(self) -> bool:
        return self.due <= self.arrived_at

    @property
    def breaks(self) -> bool:
        return any(slot in BREAKS for slot in self.script)

    def __repr__(self) -> str:
        return f"<{self.number}: {self.low}-{self.high} {self.shape}>"

    @property
    def cost(self) -> float | None:
        return None if self.shape.cost is None else self.high - self.low

    @property
    def key(self) -> str | None:
        return self.shape.key

    @property
    def result(self) -> tuple[Any, ...]:
        what = "join" if self.shape.kind == "join" else "result"
        return what, self.number, self.low, self.high

    @property
    def order(self) -> tuple[int, float]:
        return (self.whole or self).place, self.low

    @property
    def lives_under(self) -> list[BatchOptions]:
        """The options that were in force since it was made."""
        return self.world.history[self.made_at :]

    def divided(self, room: float) -> list[Call]:
        if self.shape.split == "raise":
            raise ops.Broken("split", self.number)
        if self.shape.split == "empty":
            return []
        if self.shape.split == "large":
            room = math.inf
        most = self.world.options.batch_limit.cost
        assert 0 < room <= most or self.shape.split == "large"
        self.parts, low = [], self.low
        while low < self.high:
            high = min(self.high, low + (most if low > self.low else room))
            self.parts.append(self._part(low, high))
            low = high
        return self.parts

    def _part(self, low: float, high: float) -> Call:
        return Call(
            self.number, self.script, self.run_s, self.arrived_at, self.due,
            options=self.options, shape=self.shape, asks=self.asks, world=self.world,
            low=low, high=high, whole=self, is_repeated=self.is_repeated,
        )  # fmt: skip

    def queue_ends(self) -> list[tuple[float, str]]:
        """Until when it may wait in the queue, and what then; of two it may be either."""
        ends: list[tuple[float, str]] = []
        for options in (self.world.history[self.made_at], self.options):
            level = min(self.asks.level or options.usual_priority, self.options.priority_levels)
            policy = self.options.queue_policy(level)
            limits = [self.asks.queue_timeout_s, None if policy is None else policy.timeout_s]
            limit_s = min((limit for limit in limits if limit is not None), default=math.inf)
            action = "reject" if policy is None else policy.timeout_action
            ends.append((self.arrived_at + limit_s, action))
        return ends
