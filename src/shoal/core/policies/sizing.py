"""How large a batch may or should be, and how long requests wait for it to fill.

Sizes are sums of costs; without a ``batch_size_fn`` each request costs 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from shoal.core.batch import DispatchReason
from shoal.core.options.records import Same
from shoal.core.queue import ArrivalQueue, RankedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.adaptive import AdaptiveRule
    from shoal.core.queue import Queue
    from shoal.core.request import Request

    Costs = Callable[[float], Sequence[float]]


class Sizing(ABC):
    """How much goes into one batch."""

    @abstractmethod
    def enough(self, size: float) -> float:
        """Returns the size from which a batch need not wait, unless `target` returns 0."""

    @abstractmethod
    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        """Returns the limit on the costs of a batch; 0 if it should wait."""
        # `costs` returns the costs of the waiting requests, in order, until their sum exceeds a
        # bound.


class UpToMaximum(Sizing):
    def __init__(self, most: float) -> None:
        self._most = most

    def enough(self, size: float) -> float:
        return self._most

    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        return self._most


class Allowed(Sizing):
    """TensorFlow's padding policies: pad up, reduce to the size below, or the cheaper of both."""

    def __init__(self, sizes: Sequence[int], padding: str, model: LatencyModel) -> None:
        self._sizes = sizes
        self._padding = padding
        self._model = model

    def enough(self, size: float) -> float:
        return self._sizes[-1]

    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        up = padded(self._sizes, size)
        below = bisect_right(self._sizes, size) - 1
        if below < 0 or self._padding == "up" or self._sizes[below] == size:
            return up
        down = self._sizes[below]
        if self._padding == "down" or up <= size:
            return down
        cost_of_down = self._model.mean_s_of(down)
        cost_of_up = self._model.mean_s_of(up)
        if cost_of_down is None or cost_of_up is None:
            # A size that was not measured yet is tried, to measure it.
            return down if cost_of_down is None and cost_of_up is not None else up
        return down if cost_of_down / down < cost_of_up / size else up


class Preferred(Sizing):
    """Triton's rule: a batch of the largest available preferred size goes at once, others wait."""

    # A batch also goes if it is larger than the last preferred size, or can't grow to it. After the
    # window, all requests that fit go, whatever sizes are preferred. Without a window, the largest
    # available preferred size goes.

    def __init__(self, sizes: Sequence[int], most: float, *, has_window: bool) -> None:
        self._sizes = sizes
        self._most = most
        self._has_window = has_window

    def enough(self, size: float) -> float:
        return self._sizes[0]

    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        if self._has_window and not waits:
            return self._most
        most = self._sizes[-1]
        total: float = 0
        best: float = 0
        can_grow = True
        for cost in costs(most):
            if total and total + cost > most:
                can_grow = False
                break
            total += cost
            if total in self._sizes:
                best = total
        if best:
            return best
        if waits and can_grow and total < most:
            return 0
        return total


class Adaptive(Sizing):
    def __init__(self, rule: AdaptiveRule) -> None:
        self._rule = rule

    def enough(self, size: float) -> float:
        return self._rule.limit(size)

    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        return self._rule.limit(size)


def padded(sizes: Sequence[int], size: float) -> int:
    return sizes[min(bisect_left(sizes, size), len(sizes) - 1)]


def load_of(requests: Sequence[Request], options: BatchOptions) -> float:
    load: float = len(requests)
    if options.batch_size_fn is not None:
        load = sum([request.options.cost for request in requests if request.options])
    sizes = options.allowed_batch_sizes
    return load if sizes is None else padded(sizes, load)


def sizing_of(options: BatchOptions, model: LatencyModel, adaptive: AdaptiveRule | None) -> Sizing:
    if adaptive is not None:
        return Adaptive(adaptive)
    if options.allowed_batch_sizes is not None:
        return Allowed(options.allowed_batch_sizes, options.padding, model)
    if options.preferred_batch_sizes is not None:
        has_window = options.batch_wait_timeout_s != 0 or options.idle_timeout_s is not None
        sizes = options.preferred_batch_sizes
        return Preferred(sizes, options.max_batch_size, has_window=has_window)
    return UpToMaximum(options.max_batch_size)


class Window(ABC):
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
