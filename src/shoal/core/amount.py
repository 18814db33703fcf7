"""How many requests, and how much they cost together: what waits, what a batch may hold, its room.

A batch is full when either part has reached its limit. Without a ``batch_size_fn`` each request
costs 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.core.request import Request


class Amount(NamedTuple):
    # A limit may be infinite.
    requests: float
    cost: float

    def fits(self, requests: float, cost: float) -> bool:
        return requests <= self.requests and cost <= self.cost

    @property
    def is_used_up(self) -> bool:
        return self.requests <= 0 or self.cost <= 0

    def plus(self, requests: float, cost: float) -> Amount:
        return Amount(self.requests + requests, self.cost + cost)

    def minus(self, requests: float, cost: float) -> Amount:
        return Amount(self.requests - requests, self.cost - cost)

    def times(self, number: float) -> Amount:
        # 0 * infinity is not a number.
        return Amount(self.requests * number, self.cost * number) if number else NOTHING


NOTHING: Final = Amount(0, 0)


def cost_of(requests: Iterable[Request]) -> float:
    return sum([request.cost for request in requests])
