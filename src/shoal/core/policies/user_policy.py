"""A user's own rule, and a list of who waits in it that does not depend on it.

A rule may raise, lose a request or hand one out twice. Whatever it does, the batcher has to know
whom to tell: those on the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.policies.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.core.policy import BatchPolicy, Dispatch, Pressure, Wait
    from shoal.core.request import Request


class Guarded(Rule):
    """Asks a user's rule, and keeps the list.

    Args:
        policy: The rule.

    Invariant: ``_waiting`` has the requests that were added and have been neither taken nor
    removed, in order of arrival, whether the rule knows of them or not.
    """

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
                f"the policy {self._policy!r} handed out {taken!r:.200}, but take() must hand out "
                "at least one request, and each that waits once; shoal.testing.check_policy "
                "finds out why it does not"
            )
        for request in taken:
            del self._waiting[request]
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self._waiting = dict.fromkeys((*requests, *self._waiting))
        self._policy.put_back(list(requests))  # its own, which it may change

    def waiting(self) -> Iterable[Request]:
        return list(self._waiting)
