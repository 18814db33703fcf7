"""How much goes into one batch: the limit, and the sizes that a batch may or should have.

Sizes are sums of costs; without a ``batch_size_fn`` each request costs 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.adaptive import AdaptiveRule
    from shoal.core.request import Request

    Costs = Callable[[float], Sequence[float]]


class Sizing(ABC):
    """How much goes into one batch."""

    __slots__ = ()

    @abstractmethod
    def enough(self, size: float) -> float:
        """Returns the size from which a batch need not wait, unless `target` returns 0."""

    @abstractmethod
    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        """Returns the limit on the costs of a batch; 0 if it should wait."""
        # `costs` returns the costs of the waiting requests, in order, until their sum exceeds a
        # bound.


class UpToMaximum(Sizing):
    """All waiting requests, up to ``max_batch_size``."""

    __slots__ = ("_most",)

    def __init__(self, most: float) -> None:
        self._most = most

    def enough(self, size: float) -> float:
        return self._most

    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        return self._most


class Allowed(Sizing):
    """TensorFlow's padding policies: pad up, reduce to the size below, or the cheaper of both."""

    __slots__ = ("_model", "_padding", "_sizes")

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

    __slots__ = ("_has_window", "_most", "_sizes")

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
    """The size that the latency target allows."""

    __slots__ = ("_rule",)

    def __init__(self, rule: AdaptiveRule) -> None:
        self._rule = rule

    def enough(self, size: float) -> float:
        return self._rule.limit(size)

    def target(self, size: float, costs: Costs, *, waits: bool) -> float:
        return self._rule.limit(size)


def padded(sizes: Sequence[int], size: float) -> int:
    """Returns the allowed size that a batch is padded to."""
    return sizes[min(bisect_left(sizes, size), len(sizes) - 1)]


def load_of(requests: Sequence[Request], options: BatchOptions) -> float:
    """Returns the sum of the costs of a batch, including its padding."""
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
