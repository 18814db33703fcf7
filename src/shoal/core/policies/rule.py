"""A policy as `Former` uses it, and the one around a user's own policy.

A user's policy may raise, lose a request or return one twice. Whatever it does, the batcher must be
able to notify all waiting callers: `Guarded` has a list of their requests.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from shoal.core.policy import BatchPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.core.policy import Dispatch, Pressure, Wait
    from shoal.core.request import Request, RequestOptions


class Rule(BatchPolicy):
    """A policy as `Former` uses it."""

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


class Guarded(Rule):
    """A user's policy, with a list of the waiting requests."""

    # Invariant: `_waiting` has the requests that were added and neither taken nor removed, in order
    # of arrival, whether the policy still has them or not.

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._waiting: dict[Request, None] = {}

    def size_of_all(self) -> float:
        return len(self._waiting)

    def add(self, request: Request) -> bool:
        rings = self._policy.add(request)
        self._waiting[request] = None
        return rings

    def remove(self, request: Request) -> None:
        del self._waiting[request]
        self._policy.remove(request)

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return self._policy.decide(now, pressure)

    def take(self, dispatch: Dispatch) -> list[Request]:
        taken = list(self._policy.take(dispatch))
        if not taken or len(set(taken)) < len(taken) or not self._waiting.keys() >= set(taken):
            raise RuntimeError(
                f"take() of the policy {self._policy!r} returned {taken!r:.200}, but it must "
                "return at least one request, only requests that wait, and none twice; use "
                "shoal.testing.check_policy to find the cause"
            )
        for request in taken:
            del self._waiting[request]
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self._waiting = dict.fromkeys((*requests, *self._waiting))
        self._policy.put_back(list(requests))  # a copy, which the policy may change

    def waiting(self) -> Iterable[Request]:
        return list(self._waiting)
