"""What the former asks of a policy beyond the public contract: how much waits, and short ways in.

A user's policy has only `BatchPolicy` to keep, and its other names to itself (the guide's has a
``size`` that means something else). `Guarded` makes a rule of it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from shoal.core.policy import BatchPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.request import Request, RequestOptions


class Rule(BatchPolicy):
    """A policy that a former asks."""

    __slots__ = ()

    @abstractmethod
    def size_of_all(self) -> float:
        """Returns what the costs of those that wait sum up to; their number if none has a cost."""

    def size_beside(self, asked: RequestOptions) -> float:
        """Returns what the costs of those that wait sum up to who may share a batch with another.

        Args:
            asked: The record of the other request.
        """
        return self.size_of_all()

    @property
    def append(self) -> Callable[[Request], object]:
        """What takes in a request: `add`, or a shorter way that never asks for a new decision.

        The former reads it once, and calls it for each request.
        """
        return self.add

    def extend(self, requests: Sequence[Request]) -> bool:
        """Takes in many requests, in order.

        Returns:
            Whether a slot that waits must decide again now, for any of them.
        """
        must_decide = False
        for request in requests:
            must_decide = self.add(request) or must_decide
        return must_decide

    def by_arrival(self) -> list[Request]:
        """Returns the requests that wait, in the order in which they came."""
        return sorted(self.waiting(), key=_arrival)


def _arrival(request: Request) -> tuple[float, int]:
    asked = request.options
    return request.arrived_at, 0 if asked is None else asked.number
