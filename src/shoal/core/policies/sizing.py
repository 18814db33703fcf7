"""How much a batch may or should hold, and how long requests wait for it to fill.

Allowed and preferred sizes are sums of costs; without a ``batch_size_fn`` each request costs 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from shoal.core.options.option import SAME, Same
from shoal.core.queue import ArrivalQueue, RankedQueue, cost_of
from shoal.core.request import DispatchReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.options.records import QueuePolicy
    from shoal.core.policies.adaptive import AdaptiveRule
    from shoal.core.queue import Queue
    from shoal.core.request import Request

    Costs = Callable[[float], Sequence[float]]


class Filling:
    """How a batch fills: up to the limit, and for as long as its requests may wait."""

    # They wait for ``batch_wait_timeout_s`` from the arrival, or as long as the level's queue
    # policy says; within it for ``idle_timeout_s`` from the last arrival, like caikit's batcher.
    # With a latency target, a rule of its own decides about both.

    def __init__(self, options: BatchOptions, adaptive: AdaptiveRule | None = None) -> None:
        self.limit = options.batch_limit
        self.adaptive = adaptive
        idle_s = options.idle_timeout_s
        self._idle_s = math.inf if idle_s is None else idle_s
        wait_s = options.batch_wait_timeout_s
        if wait_s is None or (wait_s == 0 and idle_s is not None):
            wait_s = math.inf
        self._others_s = _wait_s(options.default_queue_policy, wait_s)
        self._by_level = {
            level: _wait_s(policy, wait_s) for level, policy in options.queue_policies.items()
        }
        self._is_uniform = all(own == self._others_s for own in self._by_level.values())

    def enough(self, cost: float) -> float:
        """Returns the cost from which a batch need not wait, unless `target` returns 0."""
        return self.limit.cost if self.adaptive is None else self.adaptive.limit(cost)

    def target(self, cost: float, costs: Costs, *, waits: bool) -> float:
        """Returns the limit on the cost of a batch; 0 if it should wait."""
        # `cost` is that of all waiting requests. `costs` returns their costs, in order, until the
        # sum exceeds a bound.
        return self.enough(cost)

    def by_due(self) -> Queue | None:
        """Makes a queue ordered by due time; None if the order does not matter."""
        if self.adaptive is not None:
            return ArrivalQueue()
        if not self._is_uniform:
            return RankedQueue(self._due)
        return None if self._others_s in (0, math.inf) else ArrivalQueue()

    def due(
        self, first: Request, newest_at: float, requests: int, cost: float, now: float
    ) -> tuple[float, DispatchReason]:
        """Returns when a batch of the waiting requests is due, and why; infinity for never."""
        if self.adaptive is not None:
            at = self.adaptive.dispatch_at(now, first.arrived_at, newest_at, cost, requests)
            return at, DispatchReason.TIMER
        due, idle = self._due(first), newest_at + self._idle_s
        return (idle, DispatchReason.IDLE) if idle < due else (due, DispatchReason.TIMER)

    def _due(self, request: Request) -> float:
        if self._is_uniform:
            return request.arrived_at + self._others_s
        return request.arrived_at + self._by_level.get(request.priority, self._others_s)


class Allowed(Filling):
    """TensorFlow's padding policies: pad up, reduce to the size below, or the cheaper of both."""

    def __init__(self, options: BatchOptions, sizes: Sequence[int], model: LatencyModel) -> None:
        super().__init__(options)
        self._sizes = sizes
        self._padding = options.padding
        self._model = model

    def target(self, cost: float, costs: Costs, *, waits: bool) -> float:
        up = padded(self._sizes, cost)
        below = bisect_right(self._sizes, cost) - 1
        if below < 0 or self._padding == "up" or self._sizes[below] == cost:
            return up
        down = self._sizes[below]
        if self._padding == "down" or up <= cost:
            return down
        down_s, up_s = self._model.median_s_of(down), self._model.median_s_of(up)
        if down_s is None or up_s is None:
            # A size that was not measured yet is tried, to measure it.
            return down if down_s is None and up_s is not None else up
        return down if down_s / down < up_s / cost else up


class Preferred(Filling):
    """Triton's rule: a batch of the largest available preferred size goes at once, others wait."""

    # A batch also goes if it is larger than the last preferred size, or can't grow to it. After the
    # window, all requests that fit go, whatever sizes are preferred. Without a window, the largest
    # available preferred size goes.

    def __init__(self, options: BatchOptions, sizes: Sequence[int]) -> None:
        super().__init__(options)
        self._sizes = sizes
        self._has_window = options.batch_wait_timeout_s != 0 or options.idle_timeout_s is not None

    def enough(self, cost: float) -> float:
        return self._sizes[0]

    def target(self, cost: float, costs: Costs, *, waits: bool) -> float:
        if self._has_window and not waits:
            return self.limit.cost
        most = self._sizes[-1]
        total: float = 0
        best: float = 0
        can_grow = True
        for requests, own in enumerate(costs(most), 1):
            if requests > self.limit.requests or (total and total + own > most):
                can_grow = False
                break
            can_grow = requests < self.limit.requests
            total += own
            if total in self._sizes:
                best = total
        if best:
            return best
        if waits and can_grow and total < most:
            return 0
        return total


def padded(sizes: Sequence[int], cost: float) -> int:
    return sizes[min(bisect_left(sizes, cost), len(sizes) - 1)]


def load_of(requests: Sequence[Request], options: BatchOptions) -> float:
    load = len(requests) if options.batch_size_fn is None else cost_of(requests)
    sizes = options.allowed_batch_sizes
    return load if sizes is None else padded(sizes, load)


def filling_of(
    options: BatchOptions, model: LatencyModel, adaptive: AdaptiveRule | None
) -> Filling:
    if options.allowed_batch_sizes is not None:
        return Allowed(options, options.allowed_batch_sizes, model)
    if options.preferred_batch_sizes is not None:
        return Preferred(options, options.preferred_batch_sizes)
    return Filling(options, adaptive)


def _wait_s(policy: QueuePolicy | None, usual_s: float) -> float:
    own_s = SAME if policy is None else policy.batch_wait_timeout_s
    if own_s is None:
        return math.inf
    return usual_s if isinstance(own_s, Same) else own_s
