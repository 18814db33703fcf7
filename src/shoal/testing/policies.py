"""Checks that a batch policy keeps the promises of `BatchPolicy`.

The check calls the policy's methods as a batcher does, in random order. Its decisions are its own
choice; the check is that no request is lost, returned twice, or left waiting because the slot is
never woken.

A worker slot is therefore simulated, too. After `Wait` the slot sleeps, and only the condition that
the policy named wakes it. Extra calls of `decide` find out whether it should have been woken.

Random programs find cases that nobody thought of, and a seed reproduces each one. The first
programs are the shortest, so that the reported one is short.

A wrapper of the policy keeps its own list of the waiting requests, and compares it with the
policy's after each call. It records the calls for the report.
"""

from __future__ import annotations

import math
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.policy import BatchPolicy, Dispatch, Pressure, Wait
from shoal.core.request import DispatchReason, Request, RequestOptions, State, request_of_nobody

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    MakeRequest = Callable[[Random, float], Request]


ONCE: Final = "every request that is added is returned by one take, or removed, exactly once"
PRESSURE: Final = "with a pressure and a request in the queue, decide returns Dispatch"
SIZE: Final = "after Dispatch, take returns at least one request and at most its size"
TIME: Final = "if nothing else happens, decide returns Dispatch at the time that Wait named"
WOKEN: Final = "a waiting slot learns, by a time, a number or add, when to decide again"
EMPTY: Final = "with an empty queue, decide returns Wait"
PLACES: Final = "put_back puts requests back to their old positions"
CALM: Final = "a policy raises no exceptions"
_STEPS_SHOWN: Final = 50


_MORE_THAN_ANY_BATCH = 1000


def _any_request(random: Random, arrived_at: float) -> Request:
    return make_request(random.randrange(20), arrived_at=arrived_at)


def check_policy(
    make_policy: Callable[[], BatchPolicy],
    *,
    make_request: MakeRequest = _any_request,
    seeds: Iterable[int] = range(1000),
) -> None:
    """Checks that a policy keeps the promises of `BatchPolicy`.

    It needs no event loop, and takes about a second. Configure the policy for small batches, so
    that many are formed.

    Args:
        make_policy: Makes a new policy with an empty queue.
        make_request: Makes a request from a random generator and the arrival time, with
            `shoal.testing.make_request`, for example. By default items are small numbers, and
            requests have no other differences.
        seeds: One for each random program; higher seeds give longer programs.

    Raises:
        AssertionError: The policy breaks a promise. The message names the promise, and has the
            steps to reproduce it.
    """
    for seed in seeds:
        _Trial(WatchedPolicy(make_policy(), seed), make_request, seed).run()


class _Trial:
    """One random program of arrivals, departures and decisions, with a simulated slot."""

    def __init__(self, policy: WatchedPolicy, make_request: MakeRequest, seed: int) -> None:
        self._policy = policy
        self._make_request = make_request
        self._random = Random(seed)  # noqa: S311 - it must be reproducible
        self._length = 4 + seed // 16
        self._now = 0.0
        self._last_arrival = 0.0
        self._asleep: Wait | None = None  # None while the slot is busy
        self._has_happened = False  # whether anything happened since the slot fell asleep
        self._looks = 0

    def run(self) -> None:
        self._look()
        steps = {
            self._arrive: 8,
            self._let_time_pass: 4,
            self._look: 4,
            self._leave: 2,
            self._pressure: 1,
        }
        for step in self._random.choices(list(steps), list(steps.values()), k=self._length):
            step()
        self._look()
        self._wake_by_arrivals()
        while self._policy.queue:
            self._serve(Pressure(DispatchReason.DRAIN))
        self._policy.decide(self._now, Pressure(DispatchReason.DRAIN))
        self._policy.decide(self._now, None)

    def _arrive(self) -> None:
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            self._add()

    def _add(self) -> None:
        if self._random.random() < 0.2:  # it was parked, and admitted later
            self._last_arrival = self._random.uniform(self._last_arrival, self._now)
        else:
            self._last_arrival = self._now
        self._has_happened = True
        must_decide = self._policy.add(self._make_request(self._random, self._last_arrival))
        if self._asleep is None:
            return
        if must_decide or len(self._policy.queue) == self._asleep.wake_at:
            self._look()
        elif self._random.random() < 0.5:
            self._check_sleeping_slot(self._asleep)

    def _leave(self) -> None:
        if self._policy.queue:
            self._has_happened = True
            self._policy.remove(self._random.choice(list(self._policy.queue)))

    def _let_time_pass(self) -> None:
        until = math.inf if self._asleep is None else time_of(self._asleep)
        if until == math.inf:
            self._now += 10 ** self._random.uniform(-4, 1)
        elif self._random.random() < 0.4:
            self._now = min(self._random.uniform(self._now, until), math.nextafter(until, -1))
        else:
            self._now = until + self._random.choice([0, 0, 0.001, 10])
            has_happened = self._has_happened
            decision = self._policy.decide(self._now, None)
            if not isinstance(decision, Dispatch) and not has_happened:
                raise self._policy.broken(TIME)
            self._go_on(decision)

    def _look(self) -> None:
        self._looks += 1
        self._go_on(self._policy.decide(self._now, None))

    def _go_on(self, decision: Dispatch | Wait) -> None:
        if isinstance(decision, Dispatch) and self._random.random() < 0.5:
            # A slot that has just run a batch lets its callers run, and then decides again.
            decision = self._policy.decide(self._now, None)
        self._follow(decision)

    def _follow(self, decision: Dispatch | Wait) -> None:
        if isinstance(decision, Wait):
            self._asleep = decision
            self._has_happened = False
            return
        self._asleep = None
        taken = self._policy.take(decision)
        if self._random.random() < 0.15:
            some = self._random.sample(taken, self._random.randint(1, len(taken)))
            self._policy.put_back(taken, departed=set(some))

    def _check_sleeping_slot(self, asleep: Wait) -> None:
        """Checks that a sleeping slot did not need to be woken."""
        decision = self._policy.decide(self._now, None)
        if isinstance(decision, Dispatch) or time_of(decision) < time_of(asleep):
            raise self._policy.broken(f"{WOKEN}, but the last one got {asleep}")

    def _pressure(self) -> None:
        queue = self._policy.queue
        if not queue or self._random.random() < 0.5:
            self._serve(Pressure(self._random.choice([DispatchReason.FLUSH, DispatchReason.DRAIN])))
            return
        request = self._random.choice(list(queue))
        while request in queue:
            self._serve(Pressure(DispatchReason.DEADLINE, request))

    def _serve(self, pressure: Pressure) -> None:
        self._follow(self._policy.decide(self._now, pressure))

    def _wake_by_arrivals(self) -> None:
        """Checks that arrivals alone wake a slot that waits without a time limit."""
        looks = self._looks
        for _ in range(_MORE_THAN_ANY_BATCH):
            if self._asleep is None or time_of(self._asleep) < math.inf or self._looks > looks:
                return
            self._add()
        raise self._policy.broken(f"{WOKEN}, but {_MORE_THAN_ANY_BATCH} arrivals did not do that")


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
        must_decide = self._call(what, self._policy.add, request)
        self._compare()
        return bool(must_decide)

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
        if len(set(taken)) < len(taken) or not self.queue.keys() >= set(taken):
            raise self.broken(ONCE)
        for request in taken:
            del self.queue[request]
        self._compare()
        return taken

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


def make_request(
    item: Any = None,
    *,
    arrived_at: float = 0.0,
    deadline: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    priority: int = 1,
    cost: float = 1,
    key: Hashable = None,
) -> Request:
    """Makes a queued request without a caller.

    Args:
        item: The item of the call.
        arrived_at: When it arrived, in seconds.
        deadline: When it must have ended, in seconds; None for no limit.
        metadata: The metadata of the call; empty by default.
        priority: Its priority level; 1 is the highest.
        cost: What ``batch_size_fn`` would return for the item.
        key: Its bucket key; all requests of one batch have equal keys.

    Returns:
        The request, to be passed to a policy's `add`.
    """
    options = RequestOptions()
    options.deadline = options.due = deadline
    options.metadata, options.priority = metadata or {}, priority
    options.cost, options.key = cost, key
    return request_of_nobody(item, arrived_at, State.QUEUED, options, Context())
