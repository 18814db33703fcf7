"""The internal interface of a policy: `BatchPolicy`, plus sizes and faster ways to add requests.

A user's policy implements only `BatchPolicy` and may use other names freely (the one in the guide
has a ``size`` with another meaning). `Guarded` adapts it to this interface.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from shoal.core.policy import BatchPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.request import Request, RequestOptions


class Rule(BatchPolicy):
    """A policy as `Former` uses it."""

    __slots__ = ()

    @abstractmethod
    def size_of_all(self) -> float:
        """Returns the sum of the costs of the waiting requests; their number without costs."""

    def size_beside(self, asked: RequestOptions) -> float:
        """Returns the cost of the waiting requests that may share a batch with a request."""
        return self.size_of_all()

    @property
    def append(self) -> Callable[[Request], object]:
        """The function that adds a request: `add`, or a faster one that never wakes the slot."""
        # `Former` reads it once, and calls it for each request.
        return self.add

    def extend(self, requests: Sequence[Request]) -> bool:
        """Adds requests in order; returns whether a waiting slot must decide now."""
        must_decide = False
        for request in requests:
            must_decide = self.add(request) or must_decide
        return must_decide

    def hold(self) -> None:
        """Makes `add` report a full batch until the next `decide`, though one is due already."""
        # Not needed where the number of requests shows that a batch is full.

    def by_arrival(self) -> list[Request]:
        return sorted(self.waiting(), key=_arrival)


def _arrival(request: Request) -> tuple[float, int]:
    asked = request.options
    return request.arrived_at, 0 if asked is None else asked.number
