"""Calls with several requests: those of `map`, and items that are too large for one batch.

Their caller waits once for the whole group. A large item is split into parts that fit into batches,
and the results of the parts are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.core.forming.call_options import CallOptions, RequestOptionsFactory
    from shoal.core.request import Request, RequestOptions
    from shoal.loops.parking import Parking

Outcome: TypeAlias = "tuple[Any, Exception | None]"
"""The result of a call, and its error, if it failed."""

FINISHED = State.FINISHED


class GroupWaiter:
    """The waiter of all requests of a group; wakes their one caller after the last has ended."""

    __slots__ = ("_parking", "_waiter", "answered", "done", "has_failed", "left")

    def __init__(self, parking: Parking, size: int) -> None:
        self._parking = parking
        self._waiter: Any = parking.new_waiter()
        # Returns whether the caller was woken, or was cancelled and has not run since.
        self.done = partial(parking.is_spent, self._waiter)
        # How many of the group's requests have not ended.
        self.left = size
        # How many are known to have ended with a result.
        self.answered = 0
        # Returns whether the caller need not wait for the others; None if it must.
        self.has_failed: Callable[[], bool] | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        wait: Generator[Any, Any, Any] = self._waiter.__await__()
        return wait

    def wake(self) -> None:
        """Counts one ended request, and wakes the caller after the last."""
        self._ended(1)

    def answer_all(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        """Ends running requests of the group with their results; a fifth of the time of `map`."""
        for request, value in zip(requests, values, strict=True):
            request.value = value
            request.state = FINISHED
            request.batch = None
        self.answered += len(requests)
        self._ended(len(requests))

    def _ended(self, count: int) -> None:
        self.left -= count
        if not self.left or (self.has_failed is not None and self.has_failed()):
            self._parking.wake(self._waiter)


def group_of(first: GroupWaiter, requests: Sequence[Request]) -> GroupWaiter | None:
    waiters = [request.waiter for request in requests]
    return first if waiters.count(first) == len(waiters) else None


def any_failed(requests: Sequence[Request]) -> bool:
    return any(request.error is not None for request in requests)


def clear_errors(requests: Sequence[Request]) -> None:
    """Breaks the reference cycle of request, error, traceback and frame."""
    for request in requests:
        request.error = None


class Part(NamedTuple):
    item: Any
    options: RequestOptions


def parts_of(
    item: Any,
    whole: RequestOptions,
    call_options: CallOptions,
    options_factory: RequestOptionsFactory,
    now: float,
    ahead: float,
) -> list[Part]:
    """Splits an item that does not fit into one batch; raises what ``split`` raises."""
    # `ahead` is the cost of the requests in front of it.
    split, most = options_factory.options.split, options_factory.limit_cost
    room = most - ahead % most
    parts = [Part(item, whole)]
    if split is not None and whole.cost > room:
        parts = [
            Part(part, options_factory.of(part, call_options, now))
            for part in _checked(options_factory.name, split(item, room))
        ]
    for part in parts:
        # All parts have the item's deadline and bucket.
        part.options.deadline, part.options.due = whole.deadline, whole.due
        part.options.key = whole.key
        if part.options.cost > most:
            raise options_factory.refusal(part.options.cost)
    return parts


def _checked(name: str, given: Any) -> list[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
        raise TypeError(
            f"split of {name} must give back a list of parts, at least one, not {given!r:.80}"
        )
    # A copy, since user functions run while it is iterated.
    parts: Sequence[Any] = given  # pyright: ignore[reportUnknownVariableType]
    return list(parts)


def outcome_of(requests: Sequence[Request], join: Callable[[list[Any]], Any] | None) -> Outcome:
    """Joins the results of an item's parts; clears the errors of the requests."""
    try:
        for request in requests:
            if request.error is not None:
                raise request.error
        if len(requests) == 1:
            return requests[0].value, None
        assert join is not None
        return join([request.value for request in requests]), None
    except Exception as error:
        return None, error
    finally:
        clear_errors(requests)


def all_results(outcomes: list[Outcome], *, return_exceptions: bool) -> list[Any]:
    """Returns results or raises the first error, and empties the list of outcomes."""
    first = next((error for _, error in outcomes if error is not None), None)
    try:
        if first is not None and not return_exceptions:
            raise first
        return [result if error is None else error for result, error in outcomes]
    finally:
        outcomes.clear()  # the tracebacks of errors hold the frames that have it
        del first
