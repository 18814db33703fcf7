"""The requests that wait to be let into the line, in the order in which they came."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.core.request import Request

PARKED = State.PARKED
_LEFTOVERS_WORTH_A_SWEEP: Final = 64


class Parked:
    """Requests in the state PARKED; those that have left are leftovers, and skipped."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Takes in a request as the last."""
        self._requests.append(request)

    def first(self) -> Request | None:
        """Returns the request that is let in next; None if there is none."""
        requests = self._requests
        while requests and requests[0].state is not PARKED:
            requests.popleft()
        return requests[0] if requests else None

    def pop(self) -> None:
        """Takes the request out that `first` returned."""
        self._requests.popleft()

    def tidy(self, live: int) -> None:
        """Drops leftovers if they are many, beside `live` requests that wait."""
        if not live:
            self._requests.clear()
        elif len(self) - live > max(live, _LEFTOVERS_WORTH_A_SWEEP):
            self._requests = deque(self)

    def clear(self) -> None:
        """Drops everything."""
        self._requests.clear()

    def __len__(self) -> int:
        """Returns the number of its places, leftovers among them."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for request in self._requests if request.state is PARKED])
