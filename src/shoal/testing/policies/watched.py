"""A wrapper of a batch policy that checks each call, and records the calls for the report.

It keeps its own list of the waiting requests and compares it with the policy's after each call. The
promises are those of `BatchPolicy`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.policy import Dispatch, Wait
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.policy import BatchPolicy, Pressure
    from shoal.core.request import Request

ONCE: Final = "every request that is added is returned by one take, or removed, exactly once"
PRESSURE: Final = "with a pressure and a request in the queue, decide returns Dispatch"
SIZE: Final = "after Dispatch, take returns at least one request and at most its size"
TIME: Final = "if nothing else happens, decide returns Dispatch at the time that Wait named"
WOKEN: Final = "a waiting slot is told, by a time, a number or add, when to decide again"
EMPTY: Final = "with an empty queue, decide returns Wait"
ROOM: Final = "take_within returns no more than fits into the room"
PLACES: Final = "put_back puts requests back to their old positions"
CALM: Final = "a policy raises no exceptions"

_STEPS_SHOWN: Final = 50


class WatchedPolicy:
    """Checks and records the calls of a policy; `queue` has the names of requests."""

    def __init__(self, policy: BatchPolicy, seed: int) -> None:
        self.queue: dict[Request, str] = {}
        self._policy = policy
        self._seed = seed
        self._names: dict[Request, str] = {}
        self._steps: list[str] = []
        self._before: list[Request] = []  # the queue before the last `take`

    def add(self, request: Request) -> bool:
        """Adds a request; returns whether a waiting slot must decide again."""
        request.state = State.QUEUED
        self._names[request] = self.queue[request] = name = f"r{len(self._names) + 1}"
        what = f"add({name}), item={request.item!r:.40}, arrived_at={request.arrived_at}"
        is_told = self._call(what, self._policy.add, request)
        self._compare()
        return bool(is_told)

    def remove(self, request: Request) -> None:
        request.state = State.CANCELLED
        self._call(f"remove({self.queue.pop(request)})", self._policy.remove, request)
        self._compare()

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        what = f"decide({now}, pressure={pressure and pressure.reason})"
        if pressure is not None and pressure.request is not None:
            what += f" for {self._name(pressure.request)}"
        decision: Any = self._call(what, self._policy.decide, now, pressure)
        self._compare()
        if isinstance(decision, Dispatch):
            if not self.queue:
                raise self.broken(EMPTY)
            return decision
        if not isinstance(decision, Wait):
            raise self.broken("decide returns Dispatch or Wait")
        if self.queue and pressure is not None:
            raise self.broken(PRESSURE)
        if not time_of(decision) > now:
            raise self.broken(TIME)
        return decision

    def take(self, dispatch: Dispatch) -> Sequence[Request]:
        self._before = self._waiting()
        taken: list[Request] = self._call("take", self._policy.take, dispatch)
        if not 1 <= len(taken) <= dispatch.size:
            raise self.broken(SIZE)
        self._hand_out(taken)
        return taken

    def take_within(self, room: float) -> None:
        taken: list[Request] = self._call(f"take_within({room})", self._policy.take_within, room)
        self._hand_out(taken)
        if sum(request.cost for request in taken) > room:
            raise self.broken(ROOM)

    def put_back(self, taken: Sequence[Request], departed: set[Request]) -> None:
        """Puts back the requests of the last `take`, except the `departed` ones."""
        for request in departed:
            request.state = State.CANCELLED
        stay = [request for request in taken if request not in departed]
        what = f"put_back([{', '.join(map(self._name, stay))}])"
        self.queue |= {request: self._name(request) for request in stay}
        self._call(what, self._policy.put_back, stay)
        self._compare()
        if self._waiting() != [request for request in self._before if request not in departed]:
            raise self.broken(PLACES)

    def broken(self, promise: str) -> AssertionError:
        """Returns the error with the broken promise and the steps to reproduce it."""
        steps = self._steps[-_STEPS_SHOWN:]
        if len(steps) < len(self._steps):
            steps.insert(0, f"... {len(self._steps) - len(steps)} steps before")
        program = "\n".join(steps)
        return AssertionError(
            f"{type(self._policy).__name__} breaks a promise: {promise}; "
            f"found by seeds=[{self._seed}] with these steps:\n{program}"
        )

    def _hand_out(self, taken: Sequence[Request]) -> None:
        if len(set(taken)) < len(taken) or not self.queue.keys() >= set(taken):
            raise self.broken(ONCE)
        for request in taken:
            del self.queue[request]
        self._compare()

    def _compare(self) -> None:
        waiting = self._waiting()
        if len(waiting) != len(self.queue) or self.queue.keys() != set(waiting):
            should, does = list(self.queue.values()), list(map(self._name, waiting))
            raise self.broken(f"{ONCE}, but {should} should be waiting, and {does} are")

    def _waiting(self) -> list[Request]:
        try:
            return list(self._policy.waiting())
        except Exception as error:
            self._steps.append(f"waiting raises {error!r}")
            raise self.broken(CALM) from error

    def _call(self, what: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            result = method(*args)
        except Exception as error:
            self._steps.append(f"{what} raises {error!r}")
            raise self.broken(CALM) from error
        self._steps.append(f"{what} -> {self._shown(result)}")
        return result

    def _shown(self, result: object) -> str:
        if isinstance(result, Dispatch):
            return f"Dispatch({result.size}, {result.reason})"
        if isinstance(result, list):
            return f"[{', '.join(map(self._name, cast('list[Request]', result)))}]"
        return repr(result)

    def _name(self, request: Request) -> str:
        return self._names.get(request, repr(request))


def time_of(wait: Wait) -> float:
    return math.inf if wait.until is None else wait.until
