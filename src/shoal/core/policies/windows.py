"""How long requests wait for a batch to fill: when a batch is due, and its dispatch reason."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from shoal.core.batch import DispatchReason
from shoal.core.options.records import Same
from shoal.core.queues.queue import ArrivalQueue, RankedQueue

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.adaptive import AdaptiveRule
    from shoal.core.queues.queue import Queue
    from shoal.core.request import Request


class Window(ABC):
    """How long the requests of one bucket wait."""

    __slots__ = ()

    @abstractmethod
    def queue(self) -> Queue | None:
        """Makes a queue ordered by due time; None if the order does not matter."""

    @abstractmethod
    def due(
        self, first: Request, newest_at: float, count: int, size: float, now: float
    ) -> tuple[float, DispatchReason]:
        """Returns when a batch of the waiting requests is due, and why; infinity for never."""


class Fixed(Window):
    """``batch_wait_timeout_s`` from the arrival, or that of the level's queue policy."""

    __slots__ = ("_by_level", "_others_s", "is_uniform")

    def __init__(self, options: BatchOptions) -> None:
        wait_s = options.batch_wait_timeout_s
        if wait_s is None or (wait_s == 0 and options.idle_timeout_s is not None):
            wait_s = math.inf
        others = options.default_queue_policy
        self._others_s = wait_s if others is None else _wait_s(others.batch_wait_timeout_s, wait_s)
        self._by_level = {
            level: _wait_s(policy.batch_wait_timeout_s, wait_s)
            for level, policy in options.queue_policies.items()
        }
        self.is_uniform = all(own == self._others_s for own in self._by_level.values())

    def queue(self) -> Queue | None:
        if not self.is_uniform:
            return RankedQueue(self._due)
        return None if self._others_s in (0, math.inf) else ArrivalQueue()

    def due(
        self, first: Request, newest_at: float, count: int, size: float, now: float
    ) -> tuple[float, DispatchReason]:
        return self._due(first), DispatchReason.TIMER

    def _due(self, request: Request) -> float:
        if self.is_uniform:
            return request.arrived_at + self._others_s
        return request.arrived_at + self._by_level.get(request.priority, self._others_s)


class UntilIdle(Window):
    """``idle_timeout_s`` from the last arrival, within another window; like caikit's batcher."""

    __slots__ = ("_idle_s", "_within")

    def __init__(self, idle_s: float, within: Window) -> None:
        self._idle_s = idle_s
        self._within = within

    def queue(self) -> Queue | None:
        return self._within.queue()

    def due(
        self, first: Request, newest_at: float, count: int, size: float, now: float
    ) -> tuple[float, DispatchReason]:
        within, reason = self._within.due(first, newest_at, count, size, now)
        idle = newest_at + self._idle_s
        return (idle, DispatchReason.IDLE) if idle < within else (within, reason)


class ForTarget(Window):
    """The wait that the adaptive rule chooses for a latency target."""

    __slots__ = ("_rule",)

    def __init__(self, rule: AdaptiveRule) -> None:
        self._rule = rule

    def queue(self) -> Queue:
        return ArrivalQueue()

    def due(
        self, first: Request, newest_at: float, count: int, size: float, now: float
    ) -> tuple[float, DispatchReason]:
        return self._rule.dispatch_at(
            now, first.arrived_at, newest_at, size, count
        ), DispatchReason.TIMER


def window_of(options: BatchOptions, adaptive: AdaptiveRule | None) -> Window:
    if adaptive is not None:
        return ForTarget(adaptive)
    fixed = Fixed(options)
    idle_s = options.idle_timeout_s
    return fixed if idle_s is None else UntilIdle(idle_s, fixed)


def _wait_s(own: float | Same | None, usual_s: float) -> float:
    if own is None:
        return math.inf
    return usual_s if isinstance(own, Same) else own
