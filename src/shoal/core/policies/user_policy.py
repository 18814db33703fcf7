"""An adapter for a user's own policy, with an independent list of the waiting requests.

A user's policy may raise, lose a request or return one twice. Whatever it does, the batcher must be
able to notify all waiting callers: those on the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.policies.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.core.policy import BatchPolicy, Dispatch, Pressure, Wait
    from shoal.core.request import Request


class Guarded(Rule):
    """A user's policy, with a list of the waiting requests."""

    # Invariant: `_waiting` has the requests that were added and neither taken nor removed, in order
    # of arrival, whether the policy still has them or not.

    __slots__ = ("_policy", "_waiting")

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
